#include "server/shard/stall_watch.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Three workers; a stall is reported after 4 s.
class StallWatchTest : public testing::Test {
 protected:
  // As a server's tick does.
  void Tick(const std::string& waits_for = "rank 1 has not contributed") {
    now_ += milliseconds(100);
    if (watch_.IsQuiet(now_)) watch_.Look(waits_for, now_);
  }
  void Hear(int rank, WorkPhase phase) {
    watch_.OnProgress(rank, {.phase = phase, .step = 7, .age = seconds(9)}, now_);
  }
  std::vector<std::string> TakeTold() { return std::exchange(told_, {}); }

  StallWatch::Time now_{seconds(1000)};
  std::vector<int> asked_;
  std::vector<std::string> told_, log_;  // "RANK: TEXT"; lines
  StallWatch watch_{
      {.world_size = 3,
       .times = {.report_after = seconds(4)},
       .now = now_,
       .ask = [this](int rank) { asked_.push_back(rank); },
       .tell = [this](int rank, const std::string& text) { told_.push_back(absl::StrCat(rank, ": ", text)); },
       .log = [this](const std::string& line) { log_.push_back(line); }}};
};

TEST_F(StallWatchTest, AsksInTimeAndTellsAllButTheCulprit) {
  for (int i = 0; i < 19; ++i) Tick();
  EXPECT_THAT(asked_, IsEmpty());
  Tick();
  EXPECT_THAT(asked_, ElementsAre(0, 1, 2));
  for (int i = 0; i < 20; ++i) {
    for (const int rank : {0, 2}) Hear(rank, WorkPhase::kExchange);
    EXPECT_THAT(log_, IsEmpty());
    Tick();
  }
  ASSERT_EQ(log_.size(), 1u);
  EXPECT_THAT(log_[0], HasSubstr("stuck for 4.0 s (rank 1 has not contributed): rank 1 does not answer"));
  EXPECT_THAT(TakeTold(), ElementsAre("0: " + log_[0], "2: " + log_[0]));
  EXPECT_THAT(watch_.DescribeRoot(now_), HasSubstr(": rank 1 does not answer"));
  for (int i = 0; i < 10; ++i) Tick();
  EXPECT_THAT(TakeTold(), IsEmpty()) << "a stall is reported once";
  watch_.OnArrival(now_);
  EXPECT_THAT(TakeTold(), ElementsAre("0: ", "2: "));
  EXPECT_THAT(log_.back(), HasSubstr("the job goes on after 5.0 s"));
  watch_.OnArrival(now_);
  EXPECT_EQ(log_.size(), 2u);
}

// A deadline may expire at any moment, also while a new question to a living rank is open.
TEST_F(StallWatchTest, TheCauseStaysKnownWhileRanksAreAskedAgain) {
  for (int i = 0; i < 40; ++i) {
    for (const int rank : {0, 2}) Hear(rank, WorkPhase::kExchange);
    Tick();
  }
  ASSERT_EQ(log_.size(), 1u);
  asked_.clear();
  for (int i = 0; i < 60; ++i) {
    Tick();
    EXPECT_THAT(watch_.DescribeRoot(now_), HasSubstr(": rank 1 does not answer")) << i;
    // The answers come one tick later.
    for (const int rank : std::exchange(asked_, {})) {
      if (rank != 1) Hear(rank, WorkPhase::kExchange);
    }
  }
  watch_.OnArrival(now_);
  for (int i = 0; i < 25; ++i) Tick();
  EXPECT_EQ(watch_.DescribeRoot(now_), "") << "the job has gone on since";
}

// The cause may be another server. The workers see that, so they get time to report it.
TEST_F(StallWatchTest, WaitsTwiceAsLongWhereAllWorkersWait) {
  for (int i = 0; i < 79; ++i) {
    for (const int rank : {0, 1, 2}) Hear(rank, WorkPhase::kExchange);
    Tick();
  }
  EXPECT_THAT(log_, IsEmpty());
  for (const int rank : {0, 1, 2}) Hear(rank, WorkPhase::kExchange);
  Tick();
  EXPECT_EQ(log_.size(), 1u);
  EXPECT_EQ(TakeTold().size(), 3u) << "no worker is at fault";
}

TEST_F(StallWatchTest, SaysNothingWhileNoWorkerWaits) {
  for (int i = 0; i < 100; ++i) Tick("");
  EXPECT_THAT(asked_, IsEmpty());
  EXPECT_THAT(log_, IsEmpty());
}

TEST(StallWatchTimesTest, WithoutATimeItIsNeverQuiet) {
  const StallWatch watch({.world_size = 2, .now = {}});
  EXPECT_FALSE(watch.IsQuiet(StallWatch::Time{seconds(1000)}));
  EXPECT_EQ(watch.DescribeRoot(StallWatch::Time{seconds(1000)}), "");
}

}  // namespace
}  // namespace starring
