#include "worker/exchange/star/server_watch.h"

#include "gtest/gtest.h"

namespace starring {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Action = ServerWatch::Action;

constexpr StallTimes kTimes{.report_after = seconds(4)};
const ServerWatch::Time kStart{seconds(1000)};

TEST(ServerWatchTest, FindsAServerSilentThatDoesNotAnswer) {
  ServerWatch watch(kTimes);
  const ServerWatch::Seen seen{.signs_of_life = 5, .waiting_since = kStart};
  EXPECT_EQ(watch.Look(seen, kStart), Action::kNone);  // a sign of life
  EXPECT_EQ(watch.Look(seen, kStart + milliseconds(1'999)), Action::kNone);
  EXPECT_EQ(watch.Look(seen, kStart + seconds(2)), Action::kAsk);
  EXPECT_FALSE(watch.IsUnanswered(kStart + milliseconds(2'900)));
  EXPECT_EQ(watch.Look(seen, kStart + seconds(3)), Action::kNone);
  EXPECT_TRUE(watch.IsUnanswered(kStart + seconds(3)));
  EXPECT_EQ(watch.Look(seen, kStart + milliseconds(3'999)), Action::kNone);
  EXPECT_EQ(watch.Look(seen, kStart + seconds(4)), Action::kSilent);
  EXPECT_EQ(watch.quiet_since(), kStart);
  EXPECT_EQ(watch.Look(seen, kStart + seconds(5)), Action::kNone) << "one report for each stall";
  EXPECT_EQ(watch.Look({.signs_of_life = 6, .waiting_since = kStart}, kStart + seconds(7)), Action::kAnswers);
  EXPECT_EQ(watch.Look({.signs_of_life = 6, .waiting_since = kStart}, kStart + seconds(8)), Action::kNone);
}

TEST(ServerWatchTest, AServerThatAnswersIsAskedAgainLater) {
  ServerWatch watch(kTimes);
  EXPECT_EQ(watch.Look({.signs_of_life = 0, .waiting_since = kStart}, kStart + seconds(2)), Action::kAsk);
  EXPECT_EQ(watch.Look({.signs_of_life = 1, .waiting_since = kStart}, kStart + milliseconds(2'100)), Action::kNone);
  EXPECT_EQ(watch.Look({.signs_of_life = 1, .waiting_since = kStart}, kStart + milliseconds(4'099)), Action::kNone);
  EXPECT_EQ(watch.Look({.signs_of_life = 1, .waiting_since = kStart}, kStart + milliseconds(4'100)), Action::kAsk);
}

// This process was stopped itself, or had no core: the server must not be called silent before it was asked.
TEST(ServerWatchTest, AGapInItsOwnTimeIsNoSilence) {
  ServerWatch watch(kTimes);
  EXPECT_EQ(watch.Look({.signs_of_life = 1, .waiting_since = kStart}, kStart), Action::kNone);
  EXPECT_EQ(watch.Look({.signs_of_life = 1, .waiting_since = kStart}, kStart + seconds(60)), Action::kAsk);
  EXPECT_EQ(watch.Look({.signs_of_life = 2, .waiting_since = std::nullopt}, kStart + seconds(61)), Action::kNone);
}

TEST(ServerWatchTest, WithoutRequestsNothingIsAsked) {
  ServerWatch watch(kTimes);
  EXPECT_EQ(watch.Look({}, kStart + seconds(60)), Action::kNone);
  ServerWatch off(StallTimes{});
  EXPECT_EQ(off.Look({.signs_of_life = 0, .waiting_since = kStart}, kStart + seconds(60)), Action::kNone);
}

}  // namespace
}  // namespace starring
