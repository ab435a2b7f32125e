#include "worker/exchange/local/local_exchange.h"

#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/exchange/peer/example_job.h"

namespace starring {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(LocalExchange, GivesTheReferencesBitsAndState) {
  for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdamW}) {
    ExampleJob job = {.element_count = 200'000, .bucket_bytes = 1};
    job.optimizer.kind = kind;
    const JobSpec spec = job.Spec(0);
    std::vector<float> parameters = job.InitialParameters();
    const std::unique_ptr<GradientExchange> exchange = CreateLocalExchange();
    ASSERT_TRUE(exchange->Start(spec, parameters).ok());
    for (int64_t step = 0; step < 3; ++step) {
      const std::vector<float> gradient = job.Gradient(0, step);
      for (int b = 0; b < spec.buckets.bucket_count(); ++b) {
        const ElementRange range = spec.buckets.bucket(b);
        exchange->Submit({.round = step,
                          .bucket = b,
                          .gradient = std::span<const float>(gradient).subspan(range.begin, range.size())});
        EXPECT_TRUE(exchange->Await(step, b).ok());
      }
    }
    std::vector<std::vector<float>> expected_state;
    EXPECT_EQ(parameters, job.Reference(3, &expected_state));
    std::vector<std::vector<float>> state(expected_state.size(), std::vector<float>(parameters.size()));
    const std::vector<std::span<float>> spans(state.begin(), state.end());
    ASSERT_TRUE(exchange->GatherOptimizerState(spans).ok());
    EXPECT_EQ(state, expected_state);
    EXPECT_GT(exchange->counters().optimizer_seconds, 0);
    EXPECT_EQ(exchange->counters().bytes_sent, 0);
    EXPECT_TRUE(exchange->Finish().ok());
    EXPECT_TRUE(exchange->Release());
  }
}

// The first Await of a round updates all parameters, and the others none.
TEST(LocalExchange, ClipsTheGradientWhenAllBucketsAreThere) {
  ExampleJob job = {.element_count = 200'000, .bucket_bytes = 1};
  job.optimizer.clip_norm = 0.75;
  const JobSpec spec = job.Spec(0);
  ASSERT_GT(spec.buckets.bucket_count(), 1);
  std::vector<float> parameters = job.InitialParameters();
  const std::unique_ptr<GradientExchange> exchange = CreateLocalExchange();
  ASSERT_TRUE(exchange->Start(spec, parameters).ok());
  for (int64_t step = 0; step < 3; ++step) {
    const std::vector<float> gradient = job.Gradient(0, step);
    for (int b = 0; b < spec.buckets.bucket_count(); ++b) {
      const ElementRange range = spec.buckets.bucket(b);
      exchange->Submit({.round = step,
                        .bucket = b,
                        .gradient = std::span<const float>(gradient).subspan(range.begin, range.size())});
    }
    for (int b = 0; b < spec.buckets.bucket_count(); ++b) EXPECT_TRUE(exchange->Await(step, b).ok());
  }
  EXPECT_EQ(parameters, job.Reference(3));
  EXPECT_GT(exchange->counters().optimizer_seconds, 0);
}

TEST(LocalExchange, ASumOfOneWorkerIsItsOwn) {
  const std::unique_ptr<GradientExchange> exchange = CreateLocalExchange();
  std::vector<double> values = {1, 2};
  EXPECT_TRUE(exchange->Sum(SumPurpose::kStopVote, values).ok());
  EXPECT_THAT(values, ElementsAre(1, 2));
}

TEST(LocalExchange, RefusesSeveralWorkers) {
  const ExampleJob job = {.element_count = 64, .bucket_bytes = 1, .world_size = 2};
  std::vector<float> parameters(64);
  const absl::Status status = CreateLocalExchange()->Start(job.Spec(1), parameters);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("this is rank 1 of 2"));
}

TEST(LocalExchange, KeepsNoStateForAStepThatAppliesTheOptimizer) {
  const ExampleJob job = {.element_count = 64, .bucket_bytes = 1};
  std::vector<float> parameters = job.InitialParameters();
  const auto exchange = CreateLocalExchange(nullptr, LocalUpdates::kTrainingStep);
  ASSERT_TRUE(exchange->Start(job.Spec(0), parameters).ok());
  EXPECT_DEATH((exchange->Submit({.round = 0, .bucket = 0, .gradient = parameters})),
               "the training step applies the optimizer");
  EXPECT_TRUE(exchange->Finish().ok());
}

}  // namespace
}  // namespace starring
