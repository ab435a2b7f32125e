#include <cmath>
#include <limits>
#include <string>

#include "common/arithmetic/optimizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::HasSubstr;

TEST(LearningRateTest, Constant) {
  const LearningRateSchedule schedule = {.base = 0.1};
  EXPECT_EQ(LearningRateAt(schedule, 0), 0.1f);
  EXPECT_EQ(LearningRateAt(schedule, 1'000'000), 0.1f);
}

TEST(LearningRateTest, WarmUpIsLinearAndEndsAtTheBase) {
  const LearningRateSchedule schedule = {.base = 0.8, .warmup_steps = 4};
  EXPECT_EQ(LearningRateAt(schedule, 0), 0.2f);
  EXPECT_EQ(LearningRateAt(schedule, 1), 0.4f);
  EXPECT_EQ(LearningRateAt(schedule, 2), 0.6f);
  EXPECT_EQ(LearningRateAt(schedule, 3), 0.8f);
  EXPECT_EQ(LearningRateAt(schedule, 4), 0.8f);
}

// torch.optim.lr_scheduler.StepLR: gamma^(step / decay_steps).
TEST(LearningRateTest, StepDecayCountsFromStepZero) {
  const LearningRateSchedule schedule = {
      .kind = ScheduleKind::kStep, .base = 0.5, .warmup_steps = 2, .decay_steps = 10, .gamma = 0.5};
  EXPECT_EQ(LearningRateAt(schedule, 0), 0.25f);
  EXPECT_EQ(LearningRateAt(schedule, 9), 0.5f);
  EXPECT_EQ(LearningRateAt(schedule, 10), 0.25f);
  EXPECT_EQ(LearningRateAt(schedule, 19), 0.25f);
  EXPECT_EQ(LearningRateAt(schedule, 20), 0.125f);
}

TEST(LearningRateTest, CosineFallsFromTheEndOfTheWarmUpToZero) {
  const LearningRateSchedule schedule = {
      .kind = ScheduleKind::kCosine, .base = 0.4, .warmup_steps = 10, .total_steps = 110};
  EXPECT_EQ(LearningRateAt(schedule, 9), 0.4f);
  EXPECT_EQ(LearningRateAt(schedule, 10), 0.4f);
  EXPECT_EQ(LearningRateAt(schedule, 60), 0.2f);
  EXPECT_EQ(LearningRateAt(schedule, 110), 0.0f);
  EXPECT_EQ(LearningRateAt(schedule, 1000), 0.0f);
  for (int64_t step = 10; step < 110; ++step) {
    const double expected = 0.4 * 0.5 * (1 + std::cos(M_PI * static_cast<double>(step - 10) / 100.0));
    EXPECT_FLOAT_EQ(LearningRateAt(schedule, step), static_cast<float>(expected)) << step;
  }
}

TEST(LearningRateTest, RefusesWhatMakesNoSense) {
  const auto message = [](LearningRateSchedule schedule) {
    const absl::Status status = ValidateSchedule(schedule);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_TRUE(ValidateSchedule({}).ok());
  EXPECT_TRUE(ValidateSchedule({.base = 0, .warmup_steps = 0}).ok());
  EXPECT_TRUE(ValidateSchedule({.kind = ScheduleKind::kStep, .decay_steps = 1, .gamma = 1}).ok());
  EXPECT_TRUE(ValidateSchedule({.kind = ScheduleKind::kCosine, .warmup_steps = 5, .total_steps = 6}).ok());
  EXPECT_TRUE(ValidateSchedule({.kind = ScheduleKind::kStep, .decay_steps = 1}).ok());
  EXPECT_TRUE(ValidateSchedule({.kind = ScheduleKind::kCosine, .total_steps = 1}).ok());
  EXPECT_THAT(message({.base = -1}), HasSubstr("learning rate is -1"));
  EXPECT_THAT(message({.base = std::nan("")}), HasSubstr("learning rate is nan"));
  EXPECT_THAT(message({.base = 1e300}), HasSubstr("finite"));
  EXPECT_THAT(message({.warmup_steps = -1}), HasSubstr("warmup_steps is -1, it must be 0 or more"));
  EXPECT_THAT(message({.kind = ScheduleKind::kStep}), HasSubstr("decay_steps is 0"));
  EXPECT_THAT(message({.kind = ScheduleKind::kStep, .decay_steps = 1, .gamma = 0}), HasSubstr("gamma is 0"));
  EXPECT_THAT(message({.kind = ScheduleKind::kStep, .decay_steps = 1, .gamma = 1.001}), HasSubstr("gamma is 1.001"));
  EXPECT_THAT(message({.kind = ScheduleKind::kCosine, .warmup_steps = 5, .total_steps = 5}),
              HasSubstr("total_steps is 5, it must be more than warmup_steps (5)"));
  EXPECT_THAT(message({.kind = static_cast<ScheduleKind>(9)}), HasSubstr("schedule kind is 9"));
}

}  // namespace
}  // namespace starring
