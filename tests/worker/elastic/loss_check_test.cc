#include "worker/elastic/loss_check.h"

#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(LossCheckTest, TheSameStepHasTheSameLoss) {
  LossCheck check;
  EXPECT_TRUE(check.Check(7, 0.5).ok());
  EXPECT_TRUE(check.Check(8, 0.25).ok());
  EXPECT_TRUE(check.Check(7, 0.5).ok());
  const absl::Status other = check.Check(7, 0.5 + std::numeric_limits<double>::epsilon() / 2);
  EXPECT_EQ(other.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(other.message()), AllOf(HasSubstr("step 7"), HasSubstr("where it was 0.5")));
}

TEST(LossCheckTest, ForgetsWhatIsBehindASnapshot) {
  LossCheck check;
  for (int64_t step = 0; step < 10; ++step) EXPECT_TRUE(check.Check(step, 1).ok());
  check.Forget(6);
  EXPECT_EQ(check.size(), 4u);
  EXPECT_FALSE(check.Check(6, 2).ok());
}

TEST(LossCheckTest, KeepsTheNewestOfManySteps) {
  static_assert(LossCheck::kStepsMax == 100'000);  // of 64 bytes each
  LossCheck check;
  for (int64_t step = 0; step < 100'010; ++step) EXPECT_TRUE(check.Check(step, 1).ok());
  EXPECT_EQ(check.size(), LossCheck::kStepsMax);
  EXPECT_FALSE(check.Check(100'009, 2).ok());
}

}  // namespace
}  // namespace starring
