#include "common/base/steady_time.h"

#include <cstdint>
#include <limits>

#include "common/base/limits.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

TEST(SteadyTimeTest, DeadlinesAreBounded) {
  const absl::Duration longest = absl::Milliseconds(kDeadlineMsMax);
  EXPECT_EQ(BoundedDeadline(absl::Seconds(60)), absl::Seconds(60));
  EXPECT_EQ(BoundedDeadline(longest), longest);
  EXPECT_EQ(BoundedDeadline(longest + absl::Milliseconds(1)), longest);
  EXPECT_EQ(BoundedDeadline(absl::InfiniteDuration()), longest);
  EXPECT_EQ(BoundedDeadline(absl::Milliseconds(std::numeric_limits<int64_t>::max())), longest);
  EXPECT_EQ(BoundedDeadline(absl::Milliseconds(-1)), absl::ZeroDuration());
  EXPECT_EQ(BoundedDeadline(-absl::InfiniteDuration()), absl::ZeroDuration());
}

TEST(SteadyTimeTest, TheClockGoesOn) {
  const absl::Time before = SteadyNow();
  EXPECT_GE(SteadyNow(), before);
}

}  // namespace
}  // namespace starring
