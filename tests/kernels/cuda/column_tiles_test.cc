#include "kernels/cuda/column_tiles.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace starring::cuda {
namespace {

TEST(ColumnTilesTest, TilesCoverEveryElementOnce) {
  for (const int64_t rows : {1, 2, 255, 4096, 4097, 1'000'000}) {
    for (const int64_t channels : {1, 3, 4, 31, 32, 33, 64, 1000, 4096}) {
      SCOPED_TRACE(testing::Message() << rows << " rows of " << channels << " channels");
      const ColumnTiles tiles(rows, channels);
      EXPECT_TRUE(std::has_single_bit(static_cast<unsigned>(tiles.lanes)));
      EXPECT_LE(tiles.lanes, 32);
      EXPECT_GE(tiles.groups * tiles.lanes, channels);
      EXPECT_LT((tiles.groups - 1) * tiles.lanes, channels);
      EXPECT_GE(tiles.tiles * tiles.tile_rows, rows);
      EXPECT_LT((tiles.tiles - 1) * tiles.tile_rows, rows);
      EXPECT_LE(tiles.Launch().blocks, std::max(kTileBlocksMax, tiles.groups));
      int64_t rows_of_tiles = 0;
      for (int64_t tile = 0; tile < tiles.tiles; ++tile) rows_of_tiles += tiles.RowsOfTile(tile);
      EXPECT_EQ(rows_of_tiles, rows);
    }
  }
}

template <int kWidth>
void WalkAllThreads(int64_t rows, int64_t channels) {
  SCOPED_TRACE(testing::Message() << rows << " rows of " << channels << " channels, packs of " << kWidth);
  const ColumnTiles tiles(rows, channels);
  std::vector<uint8_t> visits(static_cast<size_t>(rows * channels));
  std::vector<uint8_t> firsts(static_cast<size_t>(tiles.tiles * channels));  // threads that store a tile's sum
  for (int64_t block = 0; block < tiles.Launch().blocks; ++block) {
    for (unsigned thread = 0; thread < kBlockThreads; ++thread) {
      threadIdx.x = thread;
      const ColumnPlace<kWidth> place(tiles, block);
      if (!place.has_channel) continue;
      if (place.IsFirst()) ++firsts[static_cast<size_t>(place.tile * channels + place.channel)];
      for (int64_t row = place.first_row; row < place.end_row; row += place.StepRows()) {
        for (int pack = 0; pack < place.PacksFrom(row); ++pack) {
          const int64_t element = place.Element(tiles, row) + pack * place.pitch;
          for (int64_t k = element; k < element + kWidth; ++k) ++visits[static_cast<size_t>(k)];
        }
      }
    }
  }
  threadIdx.x = 0;
  EXPECT_TRUE(std::ranges::all_of(visits, [](uint8_t count) { return count == 1; }));
  for (size_t i = 0; i < firsts.size(); ++i) ASSERT_EQ(firsts[i], i % kWidth == 0 ? 1 : 0) << i;
}

// With the emulation's threadIdx, which is a variable.
TEST(ColumnTilesTest, WalkingAllThreadsVisitsEachElementOnce) {
  for (const int64_t rows : {1, 255, 1025, 4097}) {
    for (const int64_t channels : {1, 3, 4, 31, 32, 33, 64, 1000}) WalkAllThreads<1>(rows, channels);
    for (const int64_t channels : {4, 12, 32, 36, 64, 1000}) WalkAllThreads<4>(rows, channels);
  }
}

}  // namespace
}  // namespace starring::cuda
