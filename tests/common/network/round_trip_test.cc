#include "common/network/round_trip.h"

#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "common/host/process_facts.h"

namespace starring {
namespace {

TEST(RoundTripTest, TheQuickestPingCounts) {
  v1::LinkReport link;
  int pings = 0;
  const auto ping = [&pings]() -> absl::StatusOr<int64_t> {
    // The second is the quickest, and its clock the right one.
    absl::SleepFor(absl::Milliseconds(++pings == 2 ? 20 : 200));
    return WallClockMicroseconds() + (pings == 2 ? 3'000'000 : 0);
  };
  ASSERT_TRUE(MeasureRoundTrip(3, ping, link).ok());
  EXPECT_EQ(pings, 3);
  EXPECT_GE(link.round_trip_us(), 20'000);
  EXPECT_LT(link.round_trip_us(), 200'000);
  EXPECT_NEAR(link.clock_ahead_s(), 3, 0.11) << "wrong by half the round trip at most";
}

TEST(RoundTripTest, ThePeerThatDoesNotAnswerIsAnError) {
  v1::LinkReport link;
  const auto ping = []() -> absl::StatusOr<int64_t> { return absl::UnavailableError("gone"); };
  EXPECT_EQ(MeasureRoundTrip(kPings, ping, link), absl::UnavailableError("gone"));
}

TEST(RoundTripTest, LargeMessagesThatAreLostSpeakOfTheMtu) {
  v1::LinkReport link;
  EXPECT_TRUE(SetBandwidth(1e6, link).ok());
  EXPECT_EQ(link.bytes_per_second(), 1e6);
  EXPECT_EQ(link.error(), "");
  const absl::Status closed = SetBandwidth(absl::UnavailableError("closed"), link);
  EXPECT_EQ(closed, absl::UnavailableError("small messages pass, large ones do not: closed"));
  EXPECT_EQ(link.error(), closed.message());
  EXPECT_EQ(link.way_out(), "see whether it still runs, or look for a smaller MTU on the way");
  EXPECT_EQ(SetBandwidth(absl::DeadlineExceededError("late"), link).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(link.way_out(), "look for a smaller MTU on the way");
}

}  // namespace
}  // namespace starring
