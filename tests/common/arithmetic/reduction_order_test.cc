#include "common/arithmetic/reduction_order.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace starring {
namespace {

// The rule as the header says it, element by element.
int FirstRankOf(int64_t element, int64_t element_count, int world_size) {
  const int64_t block = ReductionBlockElements(world_size);
  const int64_t begin = element / block * block;
  const int64_t length = std::min(block, element_count - begin);
  const int64_t chunk = (element - begin) * world_size / length;
  return static_cast<int>((chunk + 1) % world_size);
}

TEST(ReductionOrderTest, ChunksCoverABlockByTheFormula) {
  for (int world_size = 1; world_size <= 7; ++world_size) {
    for (const int64_t length : {1, 2, 3, 5, 16, 97, 4096, 4097, 12288}) {
      int64_t at = 1000;
      for (int chunk = 0; chunk < world_size; ++chunk) {
        const ElementRange range = RingChunk({1000, 1000 + length}, chunk, world_size);
        EXPECT_EQ(range.begin, at);
        at = range.end;
        for (int64_t e = range.begin - 1000; e < range.end - 1000; ++e) EXPECT_EQ(e * world_size / length, chunk);
      }
      EXPECT_EQ(at, 1000 + length);
    }
  }
}

// With up to four ranks the bits of every result that was ever published follow from 128 KiB.
TEST(ReductionOrderTest, ManyRanksHaveSmallChunks) {
  constexpr int64_t kKiB = 1024;
  for (int world_size = 1; world_size <= 4; ++world_size) EXPECT_EQ(ChunkBytesFor(world_size), 128 * kKiB);
  for (int world_size = 5; world_size <= 8; ++world_size) EXPECT_EQ(ChunkBytesFor(world_size), 32 * kKiB);
  for (int world_size = 9; world_size <= 16; ++world_size) EXPECT_EQ(ChunkBytesFor(world_size), 16 * kKiB);
  EXPECT_EQ(ChunkBytesFor(17), 8 * kKiB);
  EXPECT_EQ(ChunkBytesFor(32), 8 * kKiB);
  for (const int world_size : {33, 64, 65, 1000, 1024}) EXPECT_EQ(ChunkBytesFor(world_size), 4 * kKiB);
  for (int world_size = 5; world_size <= 64; ++world_size) {
    const int64_t block_bytes = ReductionBlockElements(world_size) * 4;
    EXPECT_LE(block_bytes, 256 * kKiB) << world_size;
    EXPECT_GT(block_bytes, 128 * kKiB) << world_size;
  }
}

TEST(ReductionOrderTest, WholeBlocksHaveEqualChunks) {
  for (const int world_size : {1, 2, 3, 4, 5, 8, 16, 17, 64, 100}) {
    for (int chunk = 0; chunk < world_size; ++chunk) {
      const ElementRange range = RingChunk({0, ReductionBlockElements(world_size)}, chunk, world_size);
      EXPECT_EQ(range, (ElementRange{chunk * ChunkElements(world_size), (chunk + 1) * ChunkElements(world_size)}));
    }
  }
}

TEST(ReductionOrderTest, RunsFollowTheRuleForAnyRange) {
  for (const int world_size : {1, 2, 3, 4, 5, 8, 16}) {
    const int64_t block = ReductionBlockElements(world_size);
    for (const int64_t element_count :
         {int64_t{1}, int64_t{3}, int64_t{16}, block - 1, block, block + 1, block + 3, 2 * block + 1234}) {
      std::vector<int64_t> cuts = {0,    1,    2,         block - 1,         block,        block + 1, 4095,
                                   4096, 4097, 2 * block, element_count - 1, element_count};
      std::erase_if(cuts, [&](int64_t cut) { return cut > element_count; });
      for (const int64_t begin : cuts) {
        for (const int64_t end : cuts) {
          if (end < begin) continue;
          int64_t at = begin;
          int previous = -1;
          ForEachRun({begin, end}, element_count, {.world_size = world_size}, [&](ElementRange run, int first_rank) {
            ASSERT_EQ(run.begin, at);
            ASSERT_GT(run.size(), 0);
            ASSERT_NE(first_rank, previous) << "runs are maximal";
            for (int64_t e : {run.begin, (run.begin + run.end) / 2, run.end - 1}) {
              ASSERT_EQ(first_rank, FirstRankOf(e, element_count, world_size)) << e << " of " << element_count;
            }
            previous = first_rank;
            at = run.end;
          });
          ASSERT_EQ(at, end);
        }
      }
    }
  }
}

TEST(ReductionOrderTest, ABlockShorterThanTheWorldHasEmptyChunks) {
  std::vector<std::pair<int64_t, int>> runs;
  ForEachRun({0, 2}, 2, {.world_size = 5},
             [&](ElementRange run, int first_rank) { runs.emplace_back(run.begin, first_rank); });
  // Element 0 is in chunk 0, element 1 in chunk floor(5 / 2) = 2.
  EXPECT_EQ(runs, (std::vector<std::pair<int64_t, int>>{{0, 1}, {1, 3}}));
}

TEST(ReductionOrderTest, ATreeHasOneRun) {
  int runs = 0;
  ForEachRun({10, 1'000'000}, 2'000'000, {.order = SumOrder::kTree, .world_size = 5}, [&](ElementRange run, int first) {
    EXPECT_EQ(run, (ElementRange{10, 1'000'000}));
    EXPECT_EQ(first, 0);
    ++runs;
  });
  EXPECT_EQ(runs, 1);
}

TEST(ReductionOrderTest, TheLeftHalfOfATreeIsAPowerOfTwo) {
  for (int count = 2; count <= 1024; ++count) {
    int left = 1;
    while (2 * left < count) left *= 2;
    ASSERT_EQ(TreeMiddle({0, count}), left) << count;
    ASSERT_EQ(TreeMiddle({512, 512 + count}), 512 + left) << count;
  }
}

TEST(ReductionOrderDeathTest, WrongRangesAreAProgrammersError) {
  const auto ignore = [](ElementRange, int) {};
  EXPECT_DEATH(ForEachRun({0, 11}, 10, {.world_size = 2}, ignore), "range \\[0, 11\\) of 10");
  EXPECT_DEATH(ForEachRun({5, 4}, 10, {.world_size = 2}, ignore), "CHECK failed");
  EXPECT_DEATH(TreeMiddle({3, 4}), "CHECK failed");
}

}  // namespace
}  // namespace starring
