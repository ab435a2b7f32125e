#include "worker/train/bucket_trial.h"

#include <vector>

#include "absl/time/time.h"
#include "common/arithmetic/reduction_order.h"
#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kLarge = 4 << 20;  // 16 MiB: all three sizes cut it differently

// One size's steps, which take `ms` but for the first ones, and one that was disturbed.
void RunSize(BucketTrial& trial, double ms) {
  for (int64_t step = 0; step < BucketTrial::kStepsPerSize; ++step) {
    EXPECT_EQ(trial.IsLastStepOfSize(), step == BucketTrial::kStepsPerSize - 1);
    const bool is_disturbed = step < BucketTrial::kWarmupSteps || step == 5;
    const bool is_over = trial.AddStep(absl::Milliseconds(is_disturbed ? 1000 : ms));
    EXPECT_EQ(is_over, step == BucketTrial::kStepsPerSize - 1);
  }
}

TEST(BucketTrialTest, TriesThreeSizesInThirtySteps) {
  BucketTrial trial = BucketTrial::Create(kLarge, 2).value();
  EXPECT_EQ(trial.step_count(), 30);
  for (const int64_t bytes : BucketTrial::kSizes) {
    EXPECT_FALSE(trial.is_measured());
    EXPECT_EQ(trial.buckets().bucket_bytes(), bytes);
    RunSize(trial, bytes == 1 << 20 ? 2 : 3);
  }
  ASSERT_TRUE(trial.is_measured());
  EXPECT_THAT(trial.step_ms(), ElementsAre(3, 2, 3));
}

// One rank's own times would let the ranks choose differently.
TEST(BucketTrialTest, ChoosesByTheSumsOfAllRanks) {
  BucketTrial trial = BucketTrial::Create(kLarge, 2).value();
  for (const double ms : {1, 2, 3}) RunSize(trial, ms);
  const std::vector<TriedBuckets> tried = trial.Choose(std::vector<double>{10, 8, 9});
  EXPECT_EQ(trial.buckets().bucket_bytes(), 1 << 20);
  ASSERT_EQ(tried.size(), 3);
  EXPECT_EQ(tried[0].bucket_bytes, 256 << 10);
  EXPECT_EQ(tried[0].step_ms, 5);
  EXPECT_EQ(tried[2].bucket_bytes, 4 << 20);
  EXPECT_EQ(tried[2].step_ms, 4.5);
}

TEST(BucketTrialTest, OfEqualsItChoosesTheLargest) {
  const auto chosen = [](const std::vector<double>& sums) {
    BucketTrial trial = BucketTrial::Create(kLarge, 2).value();
    for (int size = 0; size < 3; ++size) RunSize(trial, 1);
    (void)trial.Choose(sums);
    return trial.buckets().bucket_bytes();
  };
  EXPECT_EQ(chosen({1, 1, 1}), 4 << 20);
  EXPECT_EQ(chosen({1, 1, 2}), 1 << 20);
  EXPECT_EQ(chosen({1, 2, 1}), 4 << 20);
  EXPECT_EQ(chosen({1, 2, 2}), 256 << 10);
}

// With four ranks 256 KiB are rounded to a block of 512 KiB; a vector of 1 MiB is one bucket of 1 or 4 MiB.
TEST(BucketTrialTest, SizesThatCutAlikeAreTriedOnce) {
  BucketTrial four = BucketTrial::Create(kLarge, 4).value();
  EXPECT_EQ(four.buckets().bucket_bytes(), 512 << 10);
  EXPECT_EQ(four.step_count(), 30);
  EXPECT_EQ(BucketTrial::Create((1 << 20) / 4, 2)->step_count(), 20);
  const BucketTrial tiny = BucketTrial::Create(100, 2).value();
  EXPECT_EQ(tiny.size_count(), 1);
  EXPECT_EQ(tiny.step_count(), 0);
}

TEST(BucketTrialTest, AHugeModelIsTriedWithFewerSizes) {
  const int64_t count = kBucketCountMax * ReductionBlockElements(2) + 1;  // one bucket of 256 KiB too many
  const BucketTrial trial = BucketTrial::Create(count, 2).value();
  EXPECT_EQ(trial.size_count(), 2);
  EXPECT_EQ(trial.buckets().bucket_bytes(), 1 << 20);
  EXPECT_FALSE(BucketTrial::Create(kElementCountMax + 1, 2).ok());
}

}  // namespace
}  // namespace starring
