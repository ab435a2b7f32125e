#include "common/reduce/owner_map.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "common/arithmetic/reduction_order.h"
#include "common/job/bucket_map.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

constexpr int64_t kSliceElementsMin = OwnerMap::kSliceBytesMin / 4;

// The owner of each of `count` elements that `sums` have; every element has one.
std::vector<int> OwnersByElement(const OwnerMap& owners, const std::vector<OwnerMap::Sum>& sums, int64_t count) {
  std::vector<int> by_element(count, -1);
  for (const OwnerMap::Sum& sum : sums) {
    for (int owner = 0; owner < owners.owner_count(); ++owner) {
      int64_t at = sum.elements.begin;
      for (const ElementRange& range : owners.SliceOf(sum, owner)) {
        EXPECT_GT(range.size(), 0);
        EXPECT_GE(range.begin, at) << "not ascending";
        at = range.end;
        for (int64_t e = range.begin; e < range.end; ++e) EXPECT_EQ(std::exchange(by_element[e], owner), -1);
      }
    }
  }
  EXPECT_EQ(std::ranges::count(by_element, -1), 0);
  return by_element;
}

std::vector<OwnerMap::Sum> SumsOf(const BucketMap& buckets) {
  std::vector<OwnerMap::Sum> sums;
  for (int b = 0; b < buckets.bucket_count(); ++b) sums.push_back(buckets.sum(b));
  return sums;
}

TEST(OwnerMapTest, OneOwnerHasEverything) {
  const OwnerMap owners;
  EXPECT_EQ(owners.owner_count(), 1);
  EXPECT_EQ(owners.SliceOf({{5, 1'000'000}, 3}, 0), (std::vector<ElementRange>{{5, 1'000'000}}));
  EXPECT_TRUE(owners.SliceOf({{5, 5}, 3}, 0).empty());
}

TEST(OwnerMapTest, RangesAreLinesAndEven) {
  for (const int64_t element_bytes : {2, 4}) {
    const int64_t line = 64 / element_bytes;
    for (int owner_count = 1; owner_count <= 7; ++owner_count) {
      const OwnerMap owners = OwnerMap::Ranges(owner_count, element_bytes);
      const OwnerMap::Sum sum = {{line, line + 100'003}, 0};
      int64_t at = sum.elements.begin, smallest = INT64_MAX, largest = 0;
      for (int owner = 0; owner < owner_count; ++owner) {
        const ElementRange range = owners.RangeOf(sum, owner);
        EXPECT_EQ(range.begin, at);
        EXPECT_EQ(range.begin % line, 0);
        at = range.end;
        smallest = std::min(smallest, range.size());
        largest = std::max(largest, range.size());
      }
      EXPECT_EQ(at, sum.elements.end);
      EXPECT_LE(largest - smallest, 2 * line);
    }
  }
}

TEST(OwnerMapTest, RangesCoverASumOnce) {
  for (const int owner_count : {1, 2, 3, 8, 100}) {
    for (const int64_t count : {0, 1, 31, 5'000, 40'000, 1'000'003}) {
      for (const int64_t number : {0, 1, 7}) {
        OwnersByElement(OwnerMap::Ranges(owner_count), {{{0, count}, number}}, count);
        OwnersByElement(OwnerMap::Ranges(owner_count, 2), {{{0, count}, number}}, count);
      }
    }
  }
}

TEST(OwnerMapTest, EveryShardHasAPartOfAnySumOfEnoughLines) {
  for (const int shard_count : {1, 2, 3, 7}) {
    const OwnerMap owners = OwnerMap::ShardRanges(shard_count);
    for (const int64_t count : {1, 16, 16 * shard_count, 5'000, 1'000'003}) {
      const OwnerMap::Sum sum = {{0, count}, 5};
      OwnersByElement(owners, {sum}, count);
      for (int shard = 0; count >= 16 * shard_count && shard < shard_count; ++shard) {
        EXPECT_GT(owners.RangeOf(sum, shard).size(), 0);
        EXPECT_EQ(owners.RangeOf(sum, shard), owners.RangeOf({{0, count}, 6}, shard)) << "the turn decides nothing";
      }
    }
  }
}

TEST(OwnerMapTest, ARangeHas16KiBOrAllOfItsSum) {
  for (const int64_t element_bytes : {2, 4}) {
    for (const int64_t bytes : {4, 16 << 10, (32 << 10) - 4, 32 << 10, 5 * (16 << 10) + 4, 1 << 20}) {
      const OwnerMap owners = OwnerMap::Ranges(8, element_bytes);
      const OwnerMap::Sum sum = {{0, bytes / element_bytes}, 0};
      int found = 0;
      for (int owner = 0; owner < 8; ++owner) {
        const int64_t size = owners.RangeOf(sum, owner).size() * element_bytes;
        if (size == 0) continue;
        ++found;
        // A line less, because slices are whole lines.
        EXPECT_GE(size, std::min<int64_t>(bytes, OwnerMap::kSliceBytesMin) - 64);
      }
      EXPECT_EQ(found, std::clamp<int64_t>(bytes / OwnerMap::kSliceBytesMin, 1, 8));
      EXPECT_EQ(found, owners.OwnersOf(sum));
    }
  }
}

TEST(OwnerMapTest, ShortSumsHaveFewOwnersInTurn) {
  std::vector<int> owned(4, 0);
  for (int64_t number = 0; number < 8; ++number) {
    int found = 0;
    for (int owner = 0; owner < 4; ++owner) {
      if (OwnerMap::Ranges(4).RangeOf({{0, 100}, number}, owner).size() == 0) continue;
      ++found;
      ++owned[owner];
    }
    EXPECT_EQ(found, 1);
  }
  EXPECT_EQ(owned, std::vector<int>(4, 2));
}

TEST(OwnerMapTest, ManyBucketsAreSpreadEvenly) {
  for (const int world_size : {2, 3, 8, 16}) {
    for (const int64_t element_count : {3, 1024, 4096, 9000, 100'000, 8'000'000}) {
      const BucketMap map =
          BucketMap::Create({.element_count = element_count, .bucket_bytes = 1, .world_size = world_size}).value();
      const OwnerMap owners = OwnerMap::Ranges(world_size);
      std::vector<int64_t> owned(world_size);
      for (int b = 0; b < map.bucket_count(); ++b) {
        for (int rank = 0; rank < world_size; ++rank) owned[rank] += owners.RangeOf(map.sum(b), rank).size();
      }
      const auto [least, most] = std::ranges::minmax_element(owned);
      // The last, short one has fewer owners.
      if (map.bucket_count() > world_size) {
        EXPECT_LE(*most - *least, OwnerMap::kSliceBytesMin);
      }
    }
  }
}

TEST(OwnerMapTest, ARingsRanksOwnTheirChunkOfEveryBlock) {
  for (const int world_size : {1, 2, 3, 4, 5, 8, 16}) {
    const int64_t block = ReductionBlockElements(world_size);
    const int64_t element_count = 5 * block + 21;
    const BucketMap map =
        BucketMap::Create({.element_count = element_count, .bucket_bytes = 2 * block * 4, .world_size = world_size})
            .value();
    const std::vector<int> ring = OwnersByElement(OwnerMap::SplitChunks(world_size), SumsOf(map), element_count);
    // The order of a sum ends at its owner.
    ForEachRun({0, element_count}, element_count, {.world_size = world_size}, [&](ElementRange run, int first_rank) {
      for (int64_t e = run.begin; e < run.end; ++e) ASSERT_EQ((ring[e] + 1) % world_size, first_rank);
    });
    // The block of the last 21 elements has one owner in a co-located star; all other blocks have the ring's owners.
    const std::vector<int> star = OwnersByElement(OwnerMap::JoinedChunks(world_size), SumsOf(map), element_count);
    EXPECT_EQ(map.last_block(), (ElementRange{5 * block, 5 * block + 21}));
    for (int64_t e = 0; e < element_count; ++e) ASSERT_EQ(star[e], e < 5 * block ? ring[e] : 6 % world_size) << e;
  }
}

TEST(OwnerMapTest, AWholeBlockHasAnOwnerForEachChunk) {
  for (const int world_size : {1, 2, 4, 5, 16, 17, 64, 1000}) {
    const ElementRange block = {3 * ReductionBlockElements(world_size), 4 * ReductionBlockElements(world_size)};
    const OwnerMap owners = OwnerMap::JoinedChunks(world_size);
    EXPECT_EQ(owners.OwnersOfBlock(block), world_size);
    for (int rank = 0; rank < world_size; ++rank) {
      EXPECT_EQ(owners.SliceOfBlock(block, rank), RingChunk(block, rank, world_size));
      EXPECT_EQ(owners.ChunksOf(block, rank).begin, rank);
      EXPECT_EQ(owners.ChunksOf(block, rank).end, rank + 1);
    }
  }
}

TEST(OwnerMapTest, AnOwnerOfJoinedChunksHas16KiBOrIsTheOnlyOne) {
  const auto count = [](int64_t elements, int world_size) {
    return OwnerMap::JoinedChunks(world_size).OwnersOfBlock({0, elements});
  };
  EXPECT_EQ(count(1, 8), 1);
  EXPECT_EQ(count(2 * kSliceElementsMin - 1, 8), 1);
  EXPECT_EQ(count(2 * kSliceElementsMin, 8), 2);
  EXPECT_EQ(count(8 * kSliceElementsMin - 1, 8), 7);
  EXPECT_EQ(count(8 * kSliceElementsMin, 8), 8);
  EXPECT_EQ(count(100 * kSliceElementsMin, 1000), 100);
  EXPECT_EQ(count(1, 1), 1);
}

// Slices cover the block in the order of the ranks, each is its chunks, and its owner is one of their ranks.
TEST(OwnerMapTest, JoinedChunksCoverTheBlock) {
  for (const int world_size : {1, 2, 3, 4, 5, 7, 8, 16, 64, 1000}) {
    const OwnerMap owners = OwnerMap::JoinedChunks(world_size);
    const int64_t whole = ReductionBlockElements(world_size);
    for (const int64_t begin : {int64_t{0}, whole, 5 * whole}) {
      for (const int64_t length :
           {int64_t{1}, int64_t{3}, int64_t{5000}, 3 * kSliceElementsMin + 7, whole / 2, whole}) {
        const ElementRange block = {begin, begin + length};
        int64_t at = begin;
        int owner_count = 0;
        for (int rank = 0; rank < world_size; ++rank) {
          const ElementRange slice = owners.SliceOfBlock(block, rank);
          const OwnerMap::ChunkRun chunks = owners.ChunksOf(block, rank);
          if (chunks.size() == 0) continue;
          ++owner_count;
          EXPECT_LE(chunks.begin, rank);
          EXPECT_LT(rank, chunks.end);
          EXPECT_EQ(slice.begin, at);
          at = slice.end;
        }
        EXPECT_EQ(at, begin + length);
        EXPECT_EQ(owner_count, owners.OwnersOfBlock(block));
      }
    }
  }
}

TEST(OwnerMapTest, RanksOwnShortBlocksInTurn) {
  const int64_t whole = ReductionBlockElements(8);
  std::set<int> found;
  for (int64_t block = 0; block < 8; ++block) {
    for (int rank = 0; rank < 8; ++rank) {
      if (OwnerMap::JoinedChunks(8).SliceOfBlock({block * whole, block * whole + 10}, rank).size() == 0) continue;
      EXPECT_EQ(rank, (block + 1) % 8);
      found.insert(rank);
    }
  }
  EXPECT_EQ(found.size(), 8u);
}

TEST(OwnerMapDeathTest, OtherBlocksAreAProgrammersError) {
  const OwnerMap owners = OwnerMap::JoinedChunks(2);
  EXPECT_DEATH((void)owners.OwnersOfBlock({0, 0}), "CHECK failed");
  EXPECT_DEATH((void)owners.OwnersOfBlock({16, 32}), "CHECK failed");
  EXPECT_DEATH((void)owners.OwnersOfBlock({0, ReductionBlockElements(2) + 1}), "CHECK failed");
}

}  // namespace
}  // namespace starring
