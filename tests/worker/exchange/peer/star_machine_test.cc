// The co-located star's own limits, and ranks that are far ahead of others; rank_machines_test.cc has the bits.
#include "worker/exchange/peer/star_machine.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/arithmetic/reduction_order.h"
#include "common/base/limits.h"
#include "common/reduce/tree_places.h"
#include "gtest/gtest.h"
#include "tests/worker/exchange/peer/example_job.h"
#include "tests/worker/exchange/peer/machine_ranks.h"

namespace starring {
namespace {

constexpr int64_t kWindowElements = kStarWindowBytes / 4;
constexpr int64_t kScratchElementsMax = 6 * kChunkElementsMax;

// The elements of a group: as long as N messages.
int64_t GroupElements(int world_size) { return world_size * kChunkElementsMax; }

// The elements that a machine allocates to pack the messages of `groups` groups.
int64_t PackedElements(int world_size, int groups) { return world_size <= 4 ? 0 : groups * GroupElements(world_size); }

class StarMachineRanks : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Ranks, StarMachineRanks, testing::Values(2, 3, 4, 5, 8, 16));

// Whole chunks: a window is two messages.
TEST(StarMachine, KeepsOperationsAndMemoryBounded) {
  for (const int world_size : {2, 3, 4, 5, 8}) {
    SCOPED_TRACE(testing::Message() << world_size << " ranks");
    const ExampleJob job = {.element_count = std::max(3, 24 / world_size) * GroupElements(world_size),
                            .bucket_bytes = 1 << 30,
                            .world_size = world_size};
    MachineRanks ranks(job, {.kind = MachineKind::kStar, .seed = 5});
    ranks.Run(1);
    const int rounds = world_size - 1;
    EXPECT_EQ(ranks.parameters(0), ranks.parameters(rounds));
    const int blocks = RingBlocksInFlightMax(world_size);
    constexpr int kSends = 2 * 2;                   // contributions and answers have a window each
    const int contributions = std::min(3, rounds);  // at the sum's place and two others
    EXPECT_LE(ranks.network().operations_in_flight_max(), blocks * (kSends + contributions + rounds));
    EXPECT_LE(ranks.network().sends_in_flight_max(), blocks * kSends);
    EXPECT_GE(ranks.network().sends_in_flight_max(), 2);
    for (int rank = 0; rank < world_size; ++rank)
      EXPECT_LE(ranks.scratch_elements(rank), kScratchElementsMax + PackedElements(world_size, blocks));
  }
}

// Every owner's tree, over whole chunks and short ones, in any order of arrival. With the chain's bits the job would
// not be one of a tree.
TEST(StarMachine, AddsAsATree) {
  for (const int world_size : {1, 2, 3, 4, 5, 6, 7, 8, 13, 16}) {
    const int64_t block = ReductionBlockElements(world_size);
    for (const int64_t element_count : {int64_t{3}, int64_t{1023}, block / 3 + 7, block + 1}) {
      SCOPED_TRACE(testing::Message() << world_size << " ranks, " << element_count << " elements");
      const int64_t steps = element_count <= 1023 ? 3 : 1;
      ExampleJob job = {
          .element_count = element_count, .bucket_bytes = 1, .world_size = world_size, .sum_order = SumOrder::kTree};
      const std::vector<float> expected = job.Reference(steps);
      MachineRanks ranks(job, {.kind = MachineKind::kStar, .seed = static_cast<uint64_t>(element_count)});
      ranks.Run(steps);
      for (int rank = 0; rank < world_size; ++rank) ASSERT_EQ(ranks.parameters(rank), expected) << rank;
      if (element_count < 1023) continue;
      job.sum_order = SumOrder::kChain;
      EXPECT_EQ(job.Reference(steps) == expected, world_size <= 2);
    }
  }
}

// At most about log2 N sums wait for their sibling; the others' places are used again.
TEST(StarMachine, KeepsTheMemoryOfATreeBounded) {
  for (const int world_size : {2, 3, 8, 16}) {
    SCOPED_TRACE(testing::Message() << world_size << " ranks");
    const ExampleJob job = {.element_count = GroupElements(world_size),
                            .bucket_bytes = 1 << 30,
                            .world_size = world_size,
                            .sum_order = SumOrder::kTree};
    MachineRanks ranks(job, {.kind = MachineKind::kStar, .seed = 5, .groups_in_flight_max = 1});
    ranks.Run(1);
    for (int rank = 0; rank < world_size; ++rank) {
      const int held = TreePlaces::HeldMax({.rank = rank, .world_size = world_size});
      EXPECT_EQ(ranks.scratch_elements(rank),
                std::min(held + 2, world_size - 1) * kChunkElementsMax + PackedElements(world_size, 1))
          << rank;
    }
  }
}

// Small chunks all travel at once: no message of a block waits for another one's completion.
TEST_P(StarMachineRanks, SendsSmallChunksAtOnce) {
  const int world_size = GetParam();
  const ExampleJob job = {.element_count = 4096 * world_size, .bucket_bytes = 1, .world_size = world_size};
  MachineRanks ranks(job, {.kind = MachineKind::kStar});
  const std::vector<float> gradient = job.Gradient(0, 0);
  ranks.Submit(0, 0, gradient);
  // Contributions and answers are received, contributions are sent.
  EXPECT_EQ(ranks.network().operations_in_flight_max(), 3 * (world_size - 1));
}

// In between, as many messages travel as have the window's bytes.
TEST(StarMachine, TheWindowIsCountedInBytes) {
  constexpr int kRanks = 8;
  const ExampleJob job = {
      .element_count = kRanks * (kWindowElements / 5), .bucket_bytes = 1 << 30, .world_size = kRanks};
  MachineRanks ranks(job, {.kind = MachineKind::kStar, .groups_in_flight_max = 1});
  const std::vector<float> gradient = job.Gradient(3, 0);
  ranks.Submit(3, 0, gradient);
  EXPECT_EQ(ranks.network().sends_in_flight_max(), 5);
  // kWindowElements / 5 is no multiple of a cache line, so only four contributions fit the window's places; one more
  // is the sum. Two blocks are in each message, so the receives of the answers follow when the contributions have been
  // sent.
  EXPECT_EQ(ranks.network().operations_in_flight_max(), 5 + 5);
}

// Every rank sends all of a tiny vector to one rank, and gets all of it back. With 16 ranks an owner for each chunk
// would cost eight times as many messages.
TEST_P(StarMachineRanks, AShortBlockHasFewOwners) {
  const int world_size = GetParam();
  for (const int owner_count : {1, std::min(3, world_size - 1)}) {
    const int64_t element_count = 4096 * owner_count + 100;
    SCOPED_TRACE(testing::Message() << owner_count << " owners");
    for (const SumOrder order : {SumOrder::kChain, SumOrder::kTree}) {
      const ExampleJob job = {
          .element_count = element_count, .bucket_bytes = 1, .world_size = world_size, .sum_order = order};
      MachineRanks ranks(job, {.kind = MachineKind::kStar, .seed = 2});
      int owners = 0;
      int64_t bytes = 0;
      const BucketMap buckets = job.Buckets();
      const OwnerMap all = OwnerMap::JoinedChunks(world_size);
      for (int rank = 0; rank < world_size; ++rank) owners += !all.SliceOf(buckets.sum(0), rank).empty();
      EXPECT_EQ(owners, owner_count);
      EXPECT_TRUE(all.SliceOf(buckets.sum(0), 0).empty() || owner_count > 1) << "rank 0 is not the first in turn";
      ranks.Run(3);
      const std::vector<float> expected = job.Reference(3);
      for (int rank = 0; rank < world_size; ++rank) {
        ASSERT_EQ(ranks.parameters(rank), expected) << rank;
        const ExchangeCounters counters = ranks.machine(rank).counters();
        EXPECT_EQ(counters.bytes_sent, counters.bytes_received);
        bytes += counters.bytes_sent;
      }
      EXPECT_EQ(bytes, 3 * 2 * (world_size - 1) * element_count * 4);  // steps * phases
    }
  }
}

// The vector's last block is apart from the group that it would end, and is no other group's tail.
TEST_P(StarMachineRanks, AShortBlockFollowsWholeOnes) {
  const int world_size = GetParam();
  const int64_t block = ReductionBlockElements(world_size);
  for (const SumOrder order : {SumOrder::kChain, SumOrder::kTree}) {
    ExampleJob job = {.element_count = 2 * block + 4096, .world_size = world_size, .sum_order = order};
    const std::vector<float> expected = job.Reference(2);
    for (const int64_t bucket_bytes : {int64_t{1}, 3 * block * 4, int64_t{1} << 30}) {
      job.bucket_bytes = bucket_bytes;
      MachineRanks ranks(job, {.kind = MachineKind::kStar, .seed = 4});
      ranks.Run(2);
      for (int rank = 0; rank < world_size; ++rank) ASSERT_EQ(ranks.parameters(rank), expected) << rank;
    }
  }
}

// All ranks but one submit a whole step, and all messages that can travel do. The last rank then finds contributions of
// all blocks that are in flight, and still adds them in their order.
TEST_P(StarMachineRanks, WaitsForARankThatIsFarBehind) {
  const int world_size = GetParam();
  // Two groups; with many ranks one, whose chunks are short enough for six places, and a block with few owners.
  ExampleJob job = {.element_count = world_size <= 5 ? GroupElements(world_size) + 1000 : 10'000 * world_size,
                    .bucket_bytes = 1 << 30,
                    .world_size = world_size};
  for (const auto& [last, order] : {std::pair(0, SumOrder::kChain), std::pair(world_size - 1, SumOrder::kChain),
                                    std::pair(world_size / 2, SumOrder::kTree)}) {
    SCOPED_TRACE(testing::Message() << "rank " << last << " is behind");
    job.sum_order = order;
    const std::vector<float> expected = job.Reference(1);
    MachineRanks ranks(job, {.kind = MachineKind::kStar, .seed = 9});
    std::vector<std::vector<float>> gradients;
    for (int rank = 0; rank < world_size; ++rank) gradients.push_back(job.Gradient(rank, 0));
    for (int rank = 0; rank < world_size; ++rank) {
      if (rank != last) ranks.Submit(rank, 0, gradients[rank]);
    }
    for (int i = 0; i < 200 * world_size; ++i) ranks.PollAnyRank();
    for (int rank = 0; rank < world_size; ++rank) EXPECT_EQ(ranks.IsReady(rank), rank == last) << rank;
    ranks.Submit(last, 0, gradients[last]);
    ranks.PollUntilIdle();
    for (int rank = 0; rank < world_size; ++rank) EXPECT_EQ(ranks.parameters(rank), expected) << rank;
  }
}

// A rank may be a whole step ahead: it has all of step 0 and submits step 1, while another rank has not polled since it
// got its own parameters, and still has answers of step 0 in flight.
TEST_P(StarMachineRanks, ARankMayRunAhead) {
  const int world_size = GetParam();
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const ExampleJob job = {.element_count = 5000, .bucket_bytes = 1, .world_size = world_size, .seed = seed};
    MachineRanks ranks(job, {.kind = MachineKind::kStar, .seed = seed});
    std::vector<std::vector<float>> gradients;
    for (int rank = 0; rank < world_size; ++rank) gradients.push_back(job.Gradient(rank, 0));
    for (int rank = 0; rank < world_size; ++rank) ranks.Submit(rank, 0, gradients[rank]);
    while (!ranks.IsReady(0)) ranks.PollAnyRank();
    const std::vector<float> ahead = job.Gradient(0, 1);
    ranks.Submit(0, 1, ahead);
    for (int i = 0; i < 100; ++i) ranks.Poll(0);
    ranks.PollUntilIdle({0});
    EXPECT_FALSE(ranks.machine(0).IsIdle());
    std::vector<std::vector<float>> next;
    for (int rank = 0; rank < world_size; ++rank) next.push_back(job.Gradient(rank, 1));
    for (int rank = 1; rank < world_size; ++rank) ranks.Submit(rank, 1, next[rank]);
    ranks.PollUntilIdle();
    const std::vector<float> expected = job.Reference(2);
    for (int rank = 0; rank < world_size; ++rank) EXPECT_EQ(ranks.parameters(rank), expected) << rank;
  }
}

// Two ranks whose messages take one hop each way in both machines: the star sends what the ring sends.
TEST(StarMachine, IsTheRingOfTwoRanks) {
  const ExampleJob job = {.element_count = 100'001, .bucket_bytes = 1, .world_size = 2};
  MachineRanks ring(job, {.kind = MachineKind::kRing, .seed = 3});
  MachineRanks direct(job, {.kind = MachineKind::kStar, .seed = 3});
  ring.Run(2);
  direct.Run(2);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(direct.parameters(rank), ring.parameters(rank));
    EXPECT_EQ(direct.machine(rank).counters().bytes_sent, ring.machine(rank).counters().bytes_sent);
    EXPECT_EQ(direct.scratch_elements(rank), ring.scratch_elements(rank));
  }
}

}  // namespace
}  // namespace starring
