#include "tests/worker/exchange/peer/example_job.h"

#include <cmath>
#include <iterator>
#include <utility>

#include "bench/exchange_job.h"
#include "common/arithmetic/philox.h"
#include "common/arithmetic/reduction_order.h"
#include "common/check.h"

namespace starring {
namespace {

using Gradients = std::vector<std::vector<float>>;  // by rank

// Written as the definition of a tree is, without TreeMiddle.
float TreeSum(const Gradients& gradients, int64_t element, RankRange ranks) {
  if (ranks.end - ranks.begin == 1) return gradients[ranks.begin][element];
  int left = 1;
  while (2 * left < ranks.end - ranks.begin) left *= 2;
  return TreeSum(gradients, element, {ranks.begin, ranks.begin + left}) +
         TreeSum(gradients, element, {ranks.begin + left, ranks.end});
}

std::vector<float> SumOf(const Gradients& gradients, SumOrder order) {
  const int world_size = static_cast<int>(gradients.size());
  const auto element_count = std::ssize(gradients[0]);
  std::vector<float> sum(element_count);
  if (order == SumOrder::kTree) {
    for (int64_t i = 0; i < element_count; ++i) sum[i] = TreeSum(gradients, i, {0, world_size});
    return sum;
  }
  ForEachRun({0, element_count}, element_count, {.world_size = world_size}, [&](ElementRange run, int first_rank) {
    for (int64_t i = run.begin; i < run.end; ++i) {
      sum[i] = gradients[first_rank][i];
      for (int k = 1; k < world_size; ++k) sum[i] += gradients[(first_rank + k) % world_size][i];
    }
  });
  return sum;
}

}  // namespace

JobSpec ExampleJob::Spec(int rank) const {
  JobSpec job = MakeExchangeJob({.rank = rank,
                                 .world_size = world_size,
                                 .element_count = element_count,
                                 .bucket_bytes = bucket_bytes,
                                 .optimizer = optimizer});
  CHECK_EQ(job.layout.element_count(), element_count);
  job.schedule.base = 0.125;
  job.sum_order = sum_order;
  job.agreed_flags = {{"seed", std::to_string(seed)}};
  return job;
}

BucketMap ExampleJob::Buckets() const {
  absl::StatusOr<BucketMap> map =
      BucketMap::Create({.element_count = element_count, .bucket_bytes = bucket_bytes, .world_size = world_size});
  CHECK_OK(map);
  return *std::move(map);
}

std::vector<float> ExampleJob::InitialParameters() const {
  std::vector<float> parameters(element_count);
  const RandomKey key = {.seed = seed, .purpose = RandomPurpose::kInit};
  for (int64_t i = 0; i < element_count; ++i) parameters[i] = UnitFloat(key.At(i)[0]) - 0.5f;
  return parameters;
}

std::vector<float> ExampleJob::Gradient(int rank, int64_t step) const {
  std::vector<float> gradient(element_count);
  const RandomKey key = {.seed = seed,
                         .purpose = RandomPurpose::kSynthetic,
                         .stream = static_cast<uint32_t>(rank),
                         .epoch = static_cast<uint32_t>(step)};
  for (int64_t i = 0; i < element_count; ++i) {
    const PhiloxWords words = key.At(i);
    gradient[i] = values == GradientValues::kIntegers
                      ? static_cast<float>(BelowN(words[0], 17)) - 8.0f
                      : std::ldexp(UnitFloat(words[0]) - 0.5f, static_cast<int>(BelowN(words[1], 20)) - 15);
  }
  return gradient;
}

std::vector<float> ExampleJob::Reference(int64_t step_count, std::vector<std::vector<float>>* state) const {
  std::vector<float> parameters = InitialParameters();
  std::vector<std::vector<float>> vectors(StateVectorCount(optimizer), std::vector<float>(element_count));
  for (int64_t step = 0; step < step_count; ++step) {
    std::vector<std::vector<float>> gradients;
    for (int rank = 0; rank < world_size; ++rank) gradients.push_back(Gradient(rank, step));
    const std::vector<float> sum = SumOf(gradients, sum_order);
    std::vector<std::span<float>> spans(vectors.begin(), vectors.end());
    ApplyOptimizer(optimizer, {.learning_rate = 0.125f,
                               .update = step + 1,
                               .gradient = sum,
                               .parameters_in = parameters,
                               .parameters_out = parameters,
                               .state = spans});
  }
  if (state != nullptr) *state = std::move(vectors);
  return parameters;
}

}  // namespace starring
