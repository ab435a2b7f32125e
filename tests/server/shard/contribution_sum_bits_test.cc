// The parameters after several steps have the same bits for any number of buckets and shards, any pieces of messages,
// star or ring, and one run or two.
#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/arithmetic/reduction_order.h"
#include "common/job/bucket_map.h"
#include "common/job/leaf_shares.h"
#include "gtest/gtest.h"
#include "server/shard/contribution_sum.h"
#include "tests/common/arithmetic/wild_numbers.h"

namespace starring {
namespace {

struct Job {
  int world_size = 1;
  int64_t element_count = 0;
  OptimizerConfig optimizer;
  SumOrder sum_order = SumOrder::kChain;
  int leaf_count = 0;
  LearningRateSchedule schedule = {.kind = ScheduleKind::kCosine, .base = 0.1, .warmup_steps = 2, .total_steps = 9};
};

// The state that a run begins with, and the one that it ends with.
struct Model {
  std::vector<float> parameters;
  std::vector<std::vector<float>> state;
  int64_t step = 0;
  friend bool operator==(const Model& a, const Model& b) {
    bool same = SameBits(a.parameters, b.parameters) && a.step == b.step && a.state.size() == b.state.size();
    for (size_t i = 0; same && i < a.state.size(); ++i) same = SameBits(a.state[i], b.state[i]);
    return same;
  }
};

Model Start(const Job& job) {
  return {.parameters = WildNumbers(job.element_count, 999),
          .state = std::vector(StateVectorCount(job.optimizer), std::vector<float>(job.element_count))};
}

// Kept: making them takes longer than all sums, and every test asks for the same ones.
const std::vector<float>& Gradient(const Job& job, int rank, int64_t step) {
  static auto& kept = *new std::map<std::pair<int64_t, uint32_t>, std::vector<float>>;
  const auto seed = static_cast<uint32_t>(1000 * step + rank);
  std::vector<float>& gradient = kept[{job.element_count, seed}];
  if (gradient.empty()) gradient = WildNumbers(job.element_count, seed);
  return gradient;
}

// Element `e` of the sum of the workers [begin, end), as the definition says.
float TreeSum(const std::vector<std::vector<float>>& gradients, int64_t e, int begin, int end) {
  if (end - begin == 1) return gradients[begin][e];
  int left = 1;
  while (2 * left < end - begin) left *= 2;
  return TreeSum(gradients, e, begin, begin + left) + TreeSum(gradients, e, begin + left, end);
}

// A worker's contribution for a node: the sum of the node's leaves.
std::vector<float> NodeGradient(const Job& job, LeafRange leaves, int64_t step) {
  if (leaves.size() == 1) return Gradient(job, leaves.begin, step);
  std::vector<std::vector<float>> gradients;
  for (int leaf = leaves.begin; leaf < leaves.end; ++leaf) gradients.push_back(Gradient(job, leaf, step));
  std::vector<float> sum(job.element_count);
  for (int64_t e = 0; e < job.element_count; ++e) sum[e] = TreeSum(gradients, e, 0, leaves.size());
  return sum;
}

// The reference: whole vectors, and a scalar loop for the sum.
Model RunPlainly(const Job& job, Model model, int64_t step_count) {
  for (const int64_t end = model.step + step_count; model.step < end; ++model.step) {
    std::vector<std::vector<float>> gradients;
    const int leaf_count = job.leaf_count > 0 ? job.leaf_count : job.world_size;
    for (int leaf = 0; leaf < leaf_count; ++leaf) gradients.push_back(Gradient(job, leaf, model.step));
    std::vector<float> sum(job.element_count);
    const ReductionOrder reduction = {.order = job.sum_order, .world_size = job.world_size};
    ForEachRun({0, job.element_count}, job.element_count, reduction, [&](ElementRange run, int first_rank) {
      for (int64_t e = run.begin; e < run.end; ++e) {
        if (job.sum_order == SumOrder::kTree) {
          sum[e] = TreeSum(gradients, e, 0, leaf_count);
          continue;
        }
        sum[e] = gradients[first_rank][e];
        for (int k = 1; k < job.world_size; ++k) sum[e] += gradients[(first_rank + k) % job.world_size][e];
      }
    });
    const std::vector<std::span<float>> state(model.state.begin(), model.state.end());
    ApplyOptimizer(job.optimizer, {.learning_rate = LearningRateAt(job.schedule, model.step),
                                   .update = model.step + 1,
                                   .gradient = sum,
                                   .parameters_in = model.parameters,
                                   .parameters_out = model.parameters,
                                   .state = state});
  }
  return model;
}

OwnedSlices::Options OptionsOf(const Job& job, const Model& model) {
  return {.element_count = job.element_count,
          .first_step = model.step,
          .optimizer = job.optimizer,
          .schedule = job.schedule};
}

struct Cut {
  int64_t bucket_bytes = 1;
  int shard_count = 1;
  std::vector<size_t> piece_lengths = {1 << 20};
  bool in_parts = false;
};

Model RunStar(const Job& job, const Cut& cut, Model model, int64_t step_count) {
  const BucketMap buckets =
      BucketMap::Create({.element_count = job.element_count, .bucket_bytes = cut.bucket_bytes}).value();
  for (int s = 0; s < cut.shard_count; ++s) {
    OwnedSlices::Options options = OptionsOf(job, model);
    for (int b = 0; b < buckets.bucket_count(); ++b)
      options.slices.push_back({OwnerMap::ShardRanges(cut.shard_count).RangeOf(buckets.sum(b), s)});
    ContributionSum sums = ContributionSum::Create(options, {.order = job.sum_order, .world_size = job.world_size},
                                                   job.leaf_count > 0 ? DealLeavesEvenly(job.leaf_count, job.world_size)
                                                                      : std::vector<int>())
                               .value();
    if (cut.in_parts) sums.SumInParts();
    for (int b = 0; b < buckets.bucket_count(); ++b) {
      const ElementRange slice = options.slices[b][0];
      const auto message_of = [&](const std::vector<float>& whole) {
        return CutMessage(std::span(whole).subspan(slice.begin, slice.size()), cut.piece_lengths, 1);
      };
      for (size_t i = 0; i < model.state.size(); ++i) {
        EXPECT_TRUE(sums.SetState(b, static_cast<int>(i), message_of(model.state[i]).pieces()).ok());
      }
      EXPECT_TRUE(sums.SetParameters(b, message_of(model.parameters).pieces()).ok());
    }
    for (int64_t step = model.step; step < model.step + step_count; ++step) {
      const std::vector<Contributor> contributors = ContributorsOf(DealLeavesEvenly(job.leaf_count, job.world_size));
      const int count = static_cast<int>(contributors.size());
      for (int i = 0; i < count; ++i) {
        const Contributor& from =
            contributors[step % 2 == 0 ? i : count - 1 - i];  // the order of arrival must not show
        const int rank = from.rank;
        const std::vector<float> gradient = NodeGradient(job, from.leaves, step);
        for (int b = 0; b < buckets.bucket_count(); ++b) {
          const ElementRange slice = options.slices[b][0];
          const auto message = std::make_shared<CutMessage>(std::span(gradient).subspan(slice.begin, slice.size()),
                                                            cut.piece_lengths, (rank + b) % 4);
          Contribution contribution{.from = {rank, 0},
                                    .step = step,
                                    .bucket = b,
                                    .node = from.node,
                                    .pieces = message->pieces(),
                                    .keeper = message};
          const absl::StatusOr<ContributeResult> result = sums.Contribute(std::move(contribution), {});
          EXPECT_TRUE(result.ok()) << result.status();
          EXPECT_EQ(result->accepted, !from.is_last);
        }
      }
      while (sums.is_summing()) (void)sums.SumPart();
    }
    sums.owned().CopyStateOut(std::vector<std::span<float>>(model.state.begin(), model.state.end()));
    for (int b = 0; b < buckets.bucket_count(); ++b) {
      EXPECT_EQ(sums.Parameters(b)->step(), model.step + step_count - 1);
      std::ranges::copy(sums.Parameters(b)->parameters(), model.parameters.begin() + options.slices[b][0].begin);
    }
  }
  model.step += step_count;
  return model;
}

// The owned slices of a ring's ranks, over sums made by the plain loop.
Model RunRing(const Job& job, int64_t bucket_bytes, Model model, int64_t step_count) {
  const BucketMap buckets =
      BucketMap::Create(
          {.element_count = job.element_count, .bucket_bytes = bucket_bytes, .world_size = job.world_size})
          .value();
  std::vector<OwnedSlices> owned;
  for (int rank = 0; rank < job.world_size; ++rank) {
    OwnedSlices::Options options = OptionsOf(job, model);
    for (int b = 0; b < buckets.bucket_count(); ++b)
      options.slices.push_back(OwnerMap::SplitChunks(buckets.world_size()).SliceOf(buckets.sum(b), rank));
    owned.push_back(OwnedSlices::Create(options).value());
    owned.back().CopyStateIn(std::vector<std::span<const float>>(model.state.begin(), model.state.end()));
  }
  for (const int64_t end = model.step + step_count; model.step < end; ++model.step) {
    std::vector<std::vector<float>> gradients;
    for (int rank = 0; rank < job.world_size; ++rank) gradients.push_back(Gradient(job, rank, model.step));
    for (int b = 0; b < buckets.bucket_count(); ++b) {
      for (int rank = 0; rank < job.world_size; ++rank) {
        for (const ElementRange& range : OwnerMap::SplitChunks(buckets.world_size()).SliceOf(buckets.sum(b), rank)) {
          std::vector<float> sum(range.size());
          for (int64_t e = range.begin; e < range.end; ++e) {
            float travelling = gradients[(rank + 1) % job.world_size][e];
            for (int hop = 2; hop <= job.world_size; ++hop) {
              travelling = gradients[(rank + hop) % job.world_size][e] + travelling;
            }
            sum[e - range.begin] = travelling;
          }
          owned[rank].Apply({.step = model.step,
                             .bucket = b,
                             .range = range,
                             .sum = sum,
                             .parameters = std::span(model.parameters).subspan(range.begin, range.size())});
        }
      }
    }
  }
  const std::vector<std::span<float>> state(model.state.begin(), model.state.end());
  for (const OwnedSlices& slices : owned) slices.CopyStateOut(state);
  return model;
}

std::vector<Job> Jobs() {
  std::vector<Job> jobs;
  for (const int world_size : {1, 2, 3, 4, 5, 8}) {
    const int64_t block = ReductionBlockElements(world_size);
    const OptimizerConfig nesterov = {.momentum = 0.9, .nesterov = true, .weight_decay = 1e-3};
    const OptimizerConfig adamw = {.kind = OptimizerKind::kAdamW, .weight_decay = 0.01};
    jobs.push_back({.world_size = world_size, .element_count = 2 * block + 5 * 16, .optimizer = adamw});
    jobs.push_back({.world_size = world_size, .element_count = block + 16, .optimizer = nesterov});
    jobs.push_back({.world_size = world_size, .element_count = 32, .optimizer = {}});
    // A bucket ends inside a chunk of the last block.
    jobs.push_back({.world_size = world_size, .element_count = 2 * block - 5 * 16, .optimizer = {.momentum = 0.9}});
  }
  return jobs;
}

TEST(ContributionSumBitsTest, BucketsShardsAndPiecesDoNotShow) {
  for (const Job& job : Jobs()) {
    const Model expected = RunPlainly(job, Start(job), 4);
    for (const Cut& cut :
         {Cut{.bucket_bytes = 1}, Cut{.bucket_bytes = 1 << 30}, Cut{.bucket_bytes = 1, .shard_count = 3},
          Cut{.bucket_bytes = 1 << 30, .shard_count = 2, .piece_lengths = {1021}},
          Cut{.bucket_bytes = 1 << 30, .shard_count = 2, .piece_lengths = {1021}, .in_parts = true},
          Cut{.bucket_bytes = 1, .shard_count = 5, .piece_lengths = {4096, 3, 1, 777}}}) {
      EXPECT_TRUE(RunStar(job, cut, Start(job), 4) == expected)
          << job.world_size << " workers, " << job.element_count << " elements, " << cut.shard_count << " shards";
    }
  }
}

TEST(ContributionSumBitsTest, AddsAsATreeWhateverTheCut) {
  for (Job job : Jobs()) {
    const Model chain = RunPlainly(job, Start(job), 3);
    job.sum_order = SumOrder::kTree;
    const Model expected = RunPlainly(job, Start(job), 3);
    if (job.world_size == 2) {
      EXPECT_TRUE(expected == chain) << "a + b is b + a";
    }
    for (const Cut& cut : {Cut{.bucket_bytes = 1 << 30}, Cut{.bucket_bytes = 1, .shard_count = 3},
                           Cut{.bucket_bytes = 1, .shard_count = 2, .piece_lengths = {4096, 3, 1, 777}}}) {
      EXPECT_TRUE(RunStar(job, cut, Start(job), 3) == expected)
          << job.world_size << " workers, " << job.element_count << " elements, " << cut.shard_count << " shards";
    }
  }
}

TEST(ContributionSumBitsTest, NodesOfLeavesAddUpToTheSameBitsForAnyNumberOfWorkers) {
  for (const int leaf_count : {5, 8, 12}) {
    const Job one = {.element_count = 5 * 4096 + 16, .sum_order = SumOrder::kTree, .leaf_count = leaf_count};
    const Model expected = RunPlainly(one, Start(one), 3);
    for (int workers = 1; workers <= leaf_count; ++workers) {
      Job job = one;
      job.world_size = workers;
      for (const Cut& cut : {Cut{.bucket_bytes = 1 << 30}, Cut{.bucket_bytes = 1, .shard_count = 2},
                             Cut{.bucket_bytes = 1, .shard_count = 2, .piece_lengths = {4096, 3, 1, 777}}}) {
        EXPECT_TRUE(RunStar(job, cut, Start(job), 3) == expected) << workers << " workers, " << leaf_count << " leaves";
      }
    }
  }
}

TEST(ContributionSumBitsTest, RingAndStarAgree) {
  for (const Job& job : Jobs()) {
    const Model expected = RunStar(job, {.bucket_bytes = 65536, .shard_count = 2}, Start(job), 4);
    for (const int64_t bucket_bytes : {1, 1 << 30}) {
      EXPECT_TRUE(RunRing(job, bucket_bytes, Start(job), 4) == expected)
          << job.world_size << " workers, " << job.element_count << " elements";
    }
  }
}

TEST(ContributionSumBitsTest, ARunInTwoPartsAndTopologiesAgreesWithOne) {
  for (const Job& job : Jobs()) {
    const Model whole = RunPlainly(job, Start(job), 5);
    const Model half = RunStar(job, {.shard_count = 3}, Start(job), 2);
    EXPECT_TRUE(RunRing(job, 1, half, 3) == whole) << job.world_size << " workers";
    EXPECT_TRUE(RunStar(job, {.bucket_bytes = 1 << 20}, RunRing(job, 1, Start(job), 2), 3) == whole);
  }
}

}  // namespace
}  // namespace starring
