#include "worker/elastic/loss_check.h"

#include <limits>
#include <string>

#include "common/base/error_origin.h"
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

TEST(LossCheckTest, AThirdComputationDecides) {
  for (const double third : {1.0, 2.0}) {
    LossCheck check;
    EXPECT_TRUE(check.Check(7, 1).ok());
    const absl::Status second = check.Check(7, 2);
    EXPECT_EQ(OriginOf(second), (ErrorOrigin{.kind = ErrorOrigin::Kind::kOtherLoss, .number = 7}));
    EXPECT_TRUE(check.Check(7, third).ok()) << "it has come twice";
    EXPECT_TRUE(check.Check(7, third).ok());
    EXPECT_FALSE(check.Check(7, 3 - third).ok()) << "the other one has lost";
  }
  LossCheck check;
  EXPECT_TRUE(check.Check(7, 1).ok());
  EXPECT_FALSE(check.Check(7, 2).ok());
  const absl::Status third = check.Check(7, 3);
  EXPECT_EQ(OriginOf(third).kind, ErrorOrigin::Kind::kOtherLoss);
  EXPECT_THAT(std::string(third.message()), HasSubstr("its loss is 3 where it was 1, and then 2: "));
}

TEST(LossCheckTest, ForgetsWhatIsBehindASnapshot) {
  LossCheck check;
  for (int64_t step = 0; step < 10; ++step) EXPECT_TRUE(check.Check(step, 1).ok());
  check.Forget(6);
  EXPECT_EQ(check.size(), 4u);
  EXPECT_FALSE(check.Check(6, 2).ok());
}

TEST(LossCheckTest, KeepsTheNewestOfManySteps) {
  static_assert(LossCheck::kStepsMax == 100'000);  // of 80 bytes each
  LossCheck check;
  for (int64_t step = 0; step < 100'010; ++step) EXPECT_TRUE(check.Check(step, 1).ok());
  EXPECT_EQ(check.size(), LossCheck::kStepsMax);
  EXPECT_FALSE(check.Check(100'009, 2).ok());
}

}  // namespace
}  // namespace starring
