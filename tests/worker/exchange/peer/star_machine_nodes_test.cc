// Ranks of which each contributes the nodes of its share, in any order of arrival: the bits are those of the tree of
// the job's micro-batches, however many ranks there are.
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "common/arithmetic/reduction_order.h"
#include "common/base/limits.h"
#include "common/job/leaf_shares.h"
#include "gtest/gtest.h"
#include "tests/worker/exchange/peer/example_job.h"
#include "tests/worker/exchange/peer/machine_ranks.h"

namespace starring {
namespace {

ExampleJob JobOf(int world_size, int micro_batches, int64_t element_count) {
  return {.element_count = element_count,
          .bucket_bytes = 1,
          .world_size = world_size,
          .sum_order = SumOrder::kTree,
          .micro_batches = micro_batches};
}

// Vectors that few ranks own, that have empty chunks, and of more than one block, the last of which is short.
TEST(StarMachineNodes, AddsAsTheTreeOfTheMicroBatches) {
  for (const auto& [world_size, micro_batches] : std::vector<std::pair<int, int>>{
           {1, 8}, {2, 2}, {2, 3}, {2, 8}, {3, 8}, {5, 8}, {7, 8}, {8, 8}, {3, 7}, {4, 13}}) {
    const int64_t block = ReductionBlockElements(world_size);
    for (const int64_t element_count : {int64_t{3}, int64_t{1023}, block / 3 + 7, block + 1}) {
      SCOPED_TRACE(testing::Message() << world_size << " ranks, " << micro_batches << " micro-batches, "
                                      << element_count << " elements");
      const int64_t steps = element_count <= 1023 ? 3 : 1;
      const ExampleJob job = JobOf(world_size, micro_batches, element_count);
      const std::vector<float> expected = job.Reference(steps);
      MachineRanks ranks(job, {.kind = MachineKind::kNodes, .seed = static_cast<uint64_t>(element_count)});
      ranks.Run(steps);
      for (int rank = 0; rank < world_size; ++rank) ASSERT_EQ(ranks.parameters(rank), expected) << rank;
    }
  }
}

TEST(StarMachineNodes, TheNumberOfRanksChangesNoBit) {
  std::set<std::vector<float>> outcomes;
  for (int world_size = 1; world_size <= 6; ++world_size) {
    MachineRanks ranks(JobOf(world_size, 6, 5000), {.kind = MachineKind::kNodes});
    ranks.Run(2);
    outcomes.insert(ranks.parameters(0));
  }
  EXPECT_EQ(outcomes.size(), 1u);
}

// A rank may submit a whole step more while another has not polled since it got its parameters.
TEST(StarMachineNodes, ARankMayRunAhead) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    ExampleJob job = JobOf(3, 8, 5000);
    job.seed = seed;
    MachineRanks ranks(job, {.kind = MachineKind::kNodes, .seed = seed});
    std::vector<std::vector<std::vector<float>>> contributions;
    const auto submit = [&](int rank, int64_t step) {
      const std::vector<std::vector<float>>& nodes = contributions[3 * step + rank];
      for (size_t node = 0; node + 1 < nodes.size(); ++node) {
        ranks.SubmitNode(rank, step, static_cast<int>(node), nodes[node]);
      }
      ranks.Submit(rank, step, nodes.back());
    };
    for (int64_t step = 0; step < 2; ++step) {
      for (int rank = 0; rank < 3; ++rank) contributions.push_back(job.Contributions(rank, step));
    }
    for (int rank = 0; rank < 3; ++rank) submit(rank, 0);
    while (!ranks.IsReady(0)) ranks.PollAnyRank();
    submit(0, 1);
    for (int i = 0; i < 50; ++i) ranks.Poll(0);
    for (const int rank : {1, 2}) {
      while (!ranks.IsReady(rank)) ranks.PollAnyRank();
      submit(rank, 1);
    }
    ranks.PollUntilIdle();
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks.parameters(rank), job.Reference(2)) << rank;
  }
}

// Every node is a message to each owner, and each owner answers once.
TEST(StarMachineNodes, CountsWhatItSends) {
  constexpr int kRanks = 3;
  constexpr int64_t kElements = 3 * 4096;
  const ExampleJob job = JobOf(kRanks, 8, kElements);
  MachineRanks ranks(job, {.kind = MachineKind::kNodes});
  ranks.Run(1);
  const int64_t message_bytes = kElements / kRanks * 4;
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto nodes = std::ssize(ShareOf(rank, DealLeavesEvenly(8, kRanks)));
    EXPECT_EQ(ranks.machine(rank).counters().bytes_sent, (kRanks - 1) * (nodes + 1) * message_bytes) << rank;
  }
}

// A place for each contribution of the others, in each block in flight.
TEST(StarMachineNodes, KeepsItsMemoryBounded) {
  for (const int world_size : {2, 3, 8}) {
    const ExampleJob job = JobOf(world_size, 8, 8 * ReductionBlockElements(world_size));
    MachineRanks ranks(job, {.kind = MachineKind::kNodes});
    ranks.Run(1);
    const std::vector<int> leaves = DealLeavesEvenly(8, world_size);
    for (int rank = 0; rank < world_size; ++rank) {
      const auto contributions = std::ssize(ContributorsOf(leaves)) - std::ssize(ShareOf(rank, leaves));
      EXPECT_EQ(ranks.scratch_elements(rank),
                RingBlocksInFlightMax(world_size) * contributions * ChunkElements(world_size))
          << rank;
    }
  }
}

}  // namespace
}  // namespace starring
