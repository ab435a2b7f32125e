#include "worker/data/sampler.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int64_t> Iota(int64_t count) {
  std::vector<int64_t> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), int64_t{0});
  return values;
}

std::vector<int64_t> Sorted(std::vector<int64_t> values) {
  std::sort(values.begin(), values.end());
  return values;
}

TEST(SamplerTest, PermutationHoldsEverySampleOnce) {
  for (const int64_t count : {1, 2, 3, 4, 5, 7, 8, 100, 1023, 60000}) {
    EXPECT_EQ(Sorted(Sampler::Permutation(count, 1, 0)), Iota(count)) << count;
  }
}

// sampler_peer_test.py gets the same lists from a Python program that shares no code with ours.
TEST(SamplerTest, PermutationIsTheDocumentedOne) {
  EXPECT_THAT(Sampler::Permutation(10, 0, 0), ElementsAre(3, 4, 8, 7, 0, 6, 9, 5, 1, 2));
  EXPECT_THAT(Sampler::Permutation(10, 0x123456789abcdef0u, 7), ElementsAre(1, 7, 3, 4, 2, 8, 0, 5, 6, 9));
}

TEST(SamplerTest, PermutationDependsOnSeedAndEpoch) {
  const auto base = Sampler::Permutation(1000, 1, 0);
  EXPECT_EQ(base, Sampler::Permutation(1000, 1, 0));
  EXPECT_NE(base, Sampler::Permutation(1000, 2, 0));
  EXPECT_NE(base, Sampler::Permutation(1000, uint64_t{1} << 32 | 1, 0));
  EXPECT_NE(base, Sampler::Permutation(1000, 1, 1));
}

// Over many epochs each sample should come to each position equally often. With 24000 epochs of 4 samples a count has
// mean 6000 and deviation 67; the seed is fixed, so this cannot fail by chance.
TEST(SamplerTest, PermutationIsUniform) {
  constexpr int kCount = 4;
  constexpr int kEpochs = 24000;
  constexpr int kMean = kEpochs / kCount;
  int hits[kCount][kCount] = {};
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    const auto order = Sampler::Permutation(kCount, 5, epoch);
    for (int position = 0; position < kCount; ++position) ++hits[position][order[position]];
  }
  for (const auto& row : hits) {
    for (const int hit : row) EXPECT_NEAR(hit, kMean, 300);
  }
}

struct Case {
  int64_t sample_count;
  int64_t global_batch;
  int world_size;
};

class SamplerPartitionTest : public ::testing::TestWithParam<Case> {};

// Each rank gets a contiguous part of every global batch. All parts together are the batch, all batches the epoch.
TEST_P(SamplerPartitionTest, RanksCutEveryBatchWithoutOverlapPaddingOrRepeats) {
  const auto [sample_count, global_batch, world_size] = GetParam();
  for (const auto order : {Sampler::Order::kShuffled, Sampler::Order::kSequential}) {
    std::vector<Sampler> ranks;
    for (int rank = 0; rank < world_size; ++rank) {
      ranks.emplace_back(Sampler::Options{.sample_count = sample_count,
                                          .global_batch = global_batch,
                                          .rank = rank,
                                          .world_size = world_size,
                                          .seed = 3,
                                          .order = order});
    }
    const int64_t steps = ranks[0].steps_per_epoch();
    std::set<int64_t, std::greater<>> sizes;
    for (int64_t epoch = 0; epoch < 2; ++epoch) {
      std::vector<int64_t> seen;
      for (int64_t step = epoch * steps; step < (epoch + 1) * steps; ++step) {
        int64_t position = 0;
        for (Sampler& sampler : ranks) {
          const BatchPlan plan = sampler.Plan(step);
          EXPECT_EQ(plan.step, step);
          EXPECT_EQ(plan.epoch, epoch);
          EXPECT_EQ(plan.first_sample, position);
          sizes.insert(std::ssize(plan.samples));
          EXPECT_EQ(plan.global_count, std::min(global_batch, sample_count - (step - epoch * steps) * global_batch));
          // No rank has two samples more than another.
          EXPECT_GE(std::ssize(plan.samples), plan.global_count / world_size);
          EXPECT_LE(std::ssize(plan.samples), plan.global_count / world_size + 1);
          position += std::ssize(plan.samples);
          seen.insert(seen.end(), plan.samples.begin(), plan.samples.end());
        }
        EXPECT_EQ(position, ranks[0].Plan(step).global_count);
      }
      EXPECT_EQ(seen, order == Sampler::Order::kSequential ? Iota(sample_count)
                                                           : Sampler::Permutation(sample_count, 3, epoch));
    }
    EXPECT_EQ(ranks[0].local_batch_max(), *sizes.begin());
    sizes.erase(0);
    EXPECT_THAT(ranks[0].ShareSizes(), testing::ElementsAreArray(sizes));
  }
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const int64_t sample_count : {1, 2, 7, 64, 65, 100, 997}) {
    for (const int64_t global_batch : {1, 3, 10, 64, 5000}) {
      for (const int world_size : {1, 2, 3, 4, 5, 8, 13}) cases.push_back({sample_count, global_batch, world_size});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(AllSizes, SamplerPartitionTest, ::testing::ValuesIn(Cases()),
                         [](const ::testing::TestParamInfo<Case>& test_case) {
                           return "Samples" + std::to_string(test_case.param.sample_count) + "Batch" +
                                  std::to_string(test_case.param.global_batch) + "World" +
                                  std::to_string(test_case.param.world_size);
                         });

TEST(SamplerTest, LastBatchIsSmallerAndKept) {
  Sampler sampler({.sample_count = 10, .global_batch = 4, .order = Sampler::Order::kSequential});
  EXPECT_EQ(sampler.steps_per_epoch(), 3);
  EXPECT_THAT(sampler.Plan(2).samples, ElementsAre(8, 9));
  EXPECT_EQ(sampler.Plan(2).global_count, 2);
  EXPECT_THAT(sampler.Plan(3).samples, ElementsAre(0, 1, 2, 3));
}

TEST(SamplerTest, ARankMayHaveNoSampleInTheLastBatch) {
  Sampler sampler({.sample_count = 9, .global_batch = 4, .rank = 0, .world_size = 4});
  EXPECT_EQ(sampler.Plan(0).samples.size(), 1u);
  EXPECT_THAT(sampler.Plan(2).samples, IsEmpty());
  EXPECT_EQ(sampler.Plan(2).global_count, 1);
}

TEST(SamplerTest, StepsMayBeAskedInAnyOrder) {
  Sampler sampler({.sample_count = 100, .global_batch = 16});
  const BatchPlan late = sampler.Plan(20);
  const BatchPlan early = sampler.Plan(1);
  Sampler fresh({.sample_count = 100, .global_batch = 16});
  EXPECT_EQ(fresh.Plan(1).samples, early.samples);
  EXPECT_EQ(fresh.Plan(20).samples, late.samples);
}

TEST(SamplerDeathTest, RefusesARankOutsideTheWorld) {
  EXPECT_DEATH(Sampler({.sample_count = 1, .global_batch = 1, .rank = 2, .world_size = 2}), "rank");
}

}  // namespace
}  // namespace starring
