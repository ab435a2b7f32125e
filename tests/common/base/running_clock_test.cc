#include "common/base/running_clock.h"

#include <chrono>

#include "gtest/gtest.h"

namespace starring {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr RunningClock::Time kStart{hours(5)};

TEST(RunningClockTest, ShowsTheTimeWhileTheProcessRuns) {
  RunningClock clock(kStart);
  for (int i = 1; i <= 300; ++i) EXPECT_EQ(clock.Read(kStart + i * milliseconds(100)), kStart + i * milliseconds(100));
  EXPECT_EQ(clock.Read(kStart + seconds(30) + RunningClock::kStop), kStart + seconds(30) + RunningClock::kStop);
  EXPECT_EQ(clock.stopped(), seconds(0));
}

TEST(RunningClockTest, StandsStillInEveryStop) {
  RunningClock clock(kStart);
  EXPECT_EQ(clock.Read(kStart + milliseconds(100)), kStart + milliseconds(100));
  EXPECT_EQ(clock.Read(kStart + seconds(70)), kStart + milliseconds(100));
  EXPECT_EQ(clock.Read(kStart + seconds(70) + milliseconds(50)), kStart + milliseconds(150));
  EXPECT_EQ(clock.Read(kStart + seconds(90)), kStart + milliseconds(150));
  EXPECT_EQ(clock.stopped(), seconds(90) - milliseconds(150));
}

// Threads that take the time before they take the lock may come in another order.
TEST(RunningClockTest, AnEarlierTimeIsNoStop) {
  RunningClock clock(kStart);
  EXPECT_EQ(clock.Read(kStart + milliseconds(100)), kStart + milliseconds(100));
  EXPECT_EQ(clock.Read(kStart + milliseconds(90)), kStart + milliseconds(90));
  EXPECT_EQ(clock.Read(kStart + milliseconds(200)), kStart + milliseconds(200));
}

}  // namespace
}  // namespace starring
