#include "common/watch/progress_state.h"

#include "gtest/gtest.h"

namespace starring {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(ProgressStateTest, ReadsWhatWasEntered) {
  const ProgressState::Clock::time_point start{seconds(5)};
  ProgressState progress;
  EXPECT_EQ(progress.Read(start).phase, WorkPhase::kUnknown);
  EXPECT_EQ(progress.Read(start).step, -1);
  EXPECT_EQ(progress.Read(start).bucket, -1);
  progress.set_step(12);
  progress.Enter(WorkPhase::kForward, start);
  progress.set_bucket(3);
  const WorkState expected{.phase = WorkPhase::kForward, .step = 12, .bucket = 3, .age = milliseconds(1'500)};
  EXPECT_EQ(progress.Read(start + milliseconds(1'500)), expected);
}

TEST(ProgressStateTest, HoldsTheLargestStepAndBucket) {
  ProgressState progress;
  progress.set_step((int64_t{1} << 39) - 2);
  progress.set_bucket((1 << 16) - 1);
  progress.Enter(WorkPhase::kBetweenSteps, {});
  const WorkState state = progress.Read({});
  EXPECT_EQ(state.step, (int64_t{1} << 39) - 2);
  EXPECT_EQ(state.bucket, (1 << 16) - 1);
  EXPECT_EQ(state.phase, WorkPhase::kBetweenSteps);
}

TEST(ProgressStateTest, SaysInWordsWhereAProcessIs) {
  const auto words = [](WorkPhase phase, int bucket = -1) {
    return DescribeWork({.phase = phase, .step = 7, .bucket = bucket});
  };
  EXPECT_EQ(words(WorkPhase::kStart), "starting");
  EXPECT_EQ(words(WorkPhase::kReadData), "reading data for step 7");
  EXPECT_EQ(words(WorkPhase::kForward), "in forward of step 7");
  EXPECT_EQ(words(WorkPhase::kBackward), "in backward of step 7");
  EXPECT_EQ(words(WorkPhase::kExchange, 2), "in the exchange at step 7, bucket 2");
  EXPECT_EQ(words(WorkPhase::kExchange), "in the exchange at step 7");
  EXPECT_EQ(words(WorkPhase::kEvaluation), "in the evaluation after step 7");
  EXPECT_EQ(words(WorkPhase::kCheckpoint), "in the checkpoint after step 7");
  EXPECT_EQ(words(WorkPhase::kBetweenSteps), "between two steps, at step 7");
  EXPECT_EQ(words(WorkPhase::kOutside, 2), "outside the exchange, after step 7, bucket 2");
  EXPECT_EQ(DescribeWork({.phase = WorkPhase::kOutside}), "outside the exchange, before the first step");
  EXPECT_EQ(words(WorkPhase::kUnknown), "computing");
}

}  // namespace
}  // namespace starring
