#include "deploy/launch/job.h"

#include "gtest/gtest.h"

namespace starring {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kShort(20);

class RestartPauseTest : public testing::TestWithParam<RestartPause::Limits> {};

TEST_P(RestartPauseTest, GrowsWhileAttemptsEndSoon) {
  const RestartPause::Limits limits = GetParam();
  RestartPause pause(limits);
  EXPECT_EQ(pause.After(kShort), milliseconds(0));
  for (milliseconds expected = limits.min; expected < limits.max; expected *= 2) {
    EXPECT_EQ(pause.After(limits.soon - milliseconds(1)), expected);
  }
  for (int i = 0; i < 3; ++i) EXPECT_EQ(pause.After(kShort), limits.max);
}

TEST_P(RestartPauseTest, BeginsAgainAfterAnAttemptThatLasts) {
  RestartPause pause(GetParam());
  for (int i = 0; i < 4; ++i) static_cast<void>(pause.After(kShort));
  EXPECT_EQ(pause.After(GetParam().soon), milliseconds(0));
  EXPECT_EQ(pause.After(kShort), GetParam().min);
}

INSTANTIATE_TEST_SUITE_P(Each, RestartPauseTest, testing::Values(RestartPause::kOfJob, RestartPause::kOfProcess));

}  // namespace
}  // namespace starring
