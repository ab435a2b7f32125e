#include "tests/worker/exchange/peer/example_job.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "bench/exchange_job.h"
#include "common/arithmetic/gradient_norm.h"
#include "common/arithmetic/philox.h"
#include "common/arithmetic/reduction_order.h"
#include "common/base/check.h"
#include "common/job/leaf_shares.h"

namespace starring {
namespace {

using Gradients = std::vector<std::vector<float>>;  // by leaf

// SplitMix64: Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014. As with Philox, the
// word of any element follows from its number alone. Under a sanitizer, Philox took five sixths of some tests' time.
uint64_t Mix(uint64_t word) {
  word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9u;
  word = (word ^ word >> 27) * 0x94D049BB133111EBu;
  return word ^ word >> 31;
}
uint64_t WordAt(uint64_t stream, uint64_t element) { return Mix(stream + (element + 1) * 0x9E3779B97F4A7C15u); }

// The lower and the upper half of a word serve as two numbers.
uint32_t Lower(uint64_t word) { return static_cast<uint32_t>(word); }
uint32_t Upper(uint64_t word) { return static_cast<uint32_t>(word >> 32); }

// Each leaf and step has a stream of its own, which is none of the parameters'.
uint64_t GradientStream(uint64_t seed, int leaf, int64_t step) { return WordAt(WordAt(Mix(seed), 1 + step), leaf); }

// 2^-15 to 2^4.
constexpr std::array<float, 20> kMagnitudes = [] {
  std::array<float, 20> magnitudes;
  float magnitude = 0x1p-15f;
  for (float& entry : magnitudes) {
    entry = magnitude;
    magnitude *= 2;
  }
  return magnitudes;
}();

// Written as the definition of a tree is, without TreeMiddle.
std::vector<float> TreeSum(const Gradients& gradients, LeafRange leaves) {
  if (leaves.size() == 1) return gradients[leaves.begin];
  int left = 1;
  while (2 * left < leaves.size()) left *= 2;
  std::vector<float> sum = TreeSum(gradients, {leaves.begin, leaves.begin + left});
  const std::vector<float> right = TreeSum(gradients, {leaves.begin + left, leaves.end});
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += right[i];
  return sum;
}

std::vector<float> SumOf(const Gradients& gradients, SumOrder order) {
  const int world_size = static_cast<int>(gradients.size());
  const auto element_count = std::ssize(gradients[0]);
  if (order == SumOrder::kTree) return TreeSum(gradients, {0, world_size});
  std::vector<float> sum(element_count);
  ForEachRun({0, element_count}, element_count, {.world_size = world_size}, [&](ElementRange run, int first_rank) {
    std::copy_n(gradients[first_rank].begin() + run.begin, run.size(), sum.begin() + run.begin);
    for (int k = 1; k < world_size; ++k) {
      const float* const next = gradients[(first_rank + k) % world_size].data();
      for (int64_t i = run.begin; i < run.end; ++i) sum[i] += next[i];
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
                                 .sum_order = sum_order,
                                 .has_servers = has_servers,
                                 .optimizer = optimizer});
  CHECK_EQ(job.layout.element_count(), element_count);
  job.schedule.base = 0.125;
  job.micro_batches = micro_batches;
  job.agreed_flags = {{"seed", std::to_string(seed)}};
  return job;
}

BucketMap ExampleJob::Buckets() const {
  absl::StatusOr<BucketMap> map = BucketMap::Create(
      {.element_count = element_count, .bucket_bytes = bucket_bytes, .world_size = has_servers ? 1 : world_size});
  CHECK_OK(map);
  return *std::move(map);
}

std::vector<float> ExampleJob::InitialParameters() const {
  std::vector<float> parameters(element_count);
  const uint64_t stream = Mix(seed);
  uint64_t element = 0;
  for (float& parameter : parameters) parameter = UnitFloat(Lower(WordAt(stream, element++))) - 0.5f;
  return parameters;
}

std::vector<float> ExampleJob::Gradient(int leaf, int64_t step) const {
  std::vector<float> gradient(element_count);
  const uint64_t stream = GradientStream(seed, leaf, step);
  uint64_t element = 0;
  for (float& entry : gradient) {
    const uint64_t word = WordAt(stream, element++);
    entry = values == GradientValues::kIntegers
                ? static_cast<float>(BelowN(Lower(word), 17)) - 8.0f
                : (UnitFloat(Lower(word)) - 0.5f) * kMagnitudes[BelowN(Upper(word), kMagnitudes.size())];
  }
  return gradient;
}

std::vector<std::vector<float>> ExampleJob::Contributions(int rank, int64_t step) const {
  std::vector<std::vector<float>> sums;
  for (const LeafRange& node : ShareOf(rank, DealLeavesEvenly(micro_batches, world_size))) {
    Gradients gradients(node.end);
    for (int leaf = node.begin; leaf < node.end; ++leaf) gradients[leaf] = Gradient(leaf, step);
    sums.push_back(TreeSum(gradients, node));
  }
  return sums;
}

std::vector<float> ExampleJob::Reference(int64_t step_count, std::vector<std::vector<float>>* state) const {
  std::vector<float> parameters = InitialParameters();
  std::vector<std::vector<float>> vectors(StateVectorCount(optimizer), std::vector<float>(element_count));
  for (int64_t step = 0; step < step_count; ++step) {
    std::vector<std::vector<float>> gradients;
    const int leaf_count = micro_batches > 0 ? micro_batches : world_size;
    for (int leaf = 0; leaf < leaf_count; ++leaf) gradients.push_back(Gradient(leaf, step));
    std::vector<float> sum = SumOf(gradients, sum_order);
    if (optimizer.clip_norm > 0) {
      const float factor = ClipFactor(optimizer.clip_norm, sum);
      for (float& entry : sum) entry *= factor;
    }
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
