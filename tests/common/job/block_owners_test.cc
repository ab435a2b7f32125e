#include "common/job/block_owners.h"

#include <set>

#include "common/arithmetic/reduction_order.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

constexpr int64_t kSliceElementsMin = BlockOwners::kSliceBytesMin / 4;

TEST(BlockOwnersTest, AWholeBlockHasAnOwnerForEachChunk) {
  for (const int world_size : {1, 2, 4, 5, 16, 17, 64, 1000}) {
    const int64_t block = ReductionBlockElements(world_size);
    const BlockOwners owners({3 * block, 4 * block}, world_size);
    EXPECT_FALSE(owners.are_few());
    for (int rank = 0; rank < world_size; ++rank) {
      EXPECT_EQ(owners.SliceOf(rank), RingChunk({3 * block, 4 * block}, rank, world_size));
      EXPECT_EQ(owners.ChunksOf(rank).begin, rank);
      EXPECT_EQ(owners.ChunksOf(rank).end, rank + 1);
    }
  }
}

TEST(BlockOwnersTest, AnOwnerHas16KiBOrIsTheOnlyOne) {
  const auto count = [](int64_t elements, int world_size) { return BlockOwners({0, elements}, world_size).count(); };
  EXPECT_EQ(count(1, 8), 1);
  EXPECT_EQ(count(2 * kSliceElementsMin - 1, 8), 1);
  EXPECT_EQ(count(2 * kSliceElementsMin, 8), 2);
  EXPECT_EQ(count(8 * kSliceElementsMin - 1, 8), 7);
  EXPECT_EQ(count(8 * kSliceElementsMin, 8), 8);
  EXPECT_EQ(count(100 * kSliceElementsMin, 1000), 100);
  EXPECT_EQ(count(1, 1), 1);
}

// Slices cover the block in the order of the ranks, each is its chunks, and its owner is one of their ranks.
TEST(BlockOwnersTest, SlicesCoverTheBlock) {
  for (const int world_size : {1, 2, 3, 4, 5, 7, 8, 16, 64, 1000}) {
    const int64_t whole = ReductionBlockElements(world_size);
    for (const int64_t begin : {int64_t{0}, whole, 5 * whole}) {
      for (const int64_t length :
           {int64_t{1}, int64_t{3}, int64_t{5000}, 3 * kSliceElementsMin + 7, whole / 2, whole}) {
        const BlockOwners owners({begin, begin + length}, world_size);
        int64_t at = begin;
        int owner_count = 0;
        for (int rank = 0; rank < world_size; ++rank) {
          const ElementRange slice = owners.SliceOf(rank);
          const BlockOwners::Chunks chunks = owners.ChunksOf(rank);
          if (chunks.begin == chunks.end) continue;
          ++owner_count;
          EXPECT_LE(chunks.begin, rank);
          EXPECT_LT(rank, chunks.end);
          EXPECT_EQ(slice.begin, at);
          at = slice.end;
        }
        EXPECT_EQ(at, begin + length);
        EXPECT_EQ(owner_count, owners.count());
      }
    }
  }
}

TEST(BlockOwnersTest, RanksOwnShortBlocksInTurn) {
  const int64_t whole = ReductionBlockElements(8);
  std::set<int> owners;
  for (int64_t block = 0; block < 8; ++block) {
    const BlockOwners of_block({block * whole, block * whole + 10}, 8);
    for (int rank = 0; rank < 8; ++rank) {
      if (of_block.SliceOf(rank).size() == 0) continue;
      EXPECT_EQ(rank, (block + 1) % 8);
      owners.insert(rank);
    }
  }
  EXPECT_EQ(owners.size(), 8u);
}

TEST(BlockOwnersDeathTest, OtherRangesAreAProgrammersError) {
  EXPECT_DEATH(BlockOwners({0, 0}, 2), "CHECK failed");
  EXPECT_DEATH(BlockOwners({16, 32}, 2), "CHECK failed");
  EXPECT_DEATH(BlockOwners({0, ReductionBlockElements(2) + 1}, 2), "CHECK failed");
}

}  // namespace
}  // namespace starring
