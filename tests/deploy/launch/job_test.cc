#include "deploy/launch/job.h"

#include "gtest/gtest.h"

namespace starring {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kShort(20);

TEST(RestartPauseTest, GrowsWhileAttemptsEndSoon) {
  RestartPause pause;
  EXPECT_EQ(pause.After(kShort), milliseconds(0));
  for (milliseconds expected = RestartPause::kPauseMin; expected < RestartPause::kPauseMax; expected *= 2) {
    EXPECT_EQ(pause.After(RestartPause::kSoon - milliseconds(1)), expected);
  }
  for (int i = 0; i < 3; ++i) EXPECT_EQ(pause.After(kShort), RestartPause::kPauseMax);
}

TEST(RestartPauseTest, BeginsAgainAfterAnAttemptThatLasts) {
  RestartPause pause;
  for (int i = 0; i < 4; ++i) static_cast<void>(pause.After(kShort));
  EXPECT_EQ(pause.After(RestartPause::kSoon), milliseconds(0));
  EXPECT_EQ(pause.After(kShort), RestartPause::kPauseMin);
}

}  // namespace
}  // namespace starring
