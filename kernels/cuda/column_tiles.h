// How a block walks down the columns of a (rows, channels) matrix, and sums what its threads found.
//
// Words. A *tile* is what one block sees: `lanes` neighbouring channels (a power of two, at most 32) by kTileElements /
// lanes rows. A *pack* is kWidth of these channels: 4, moved by one 16-byte access, or 1, where a row is no whole
// number of packs. A tile has lanes / kWidth *pack lanes*: thread t has pack t % pack lanes of rows t / pack lanes and
// every (threads / pack lanes)-th after it, so that a warp reads neighbouring floats whatever the number of channels.
// Tiles are the same for both widths.
//
// Device code of .cu files; ColumnTiles is made on the host.
#ifndef STARRING_KERNELS_CUDA_COLUMN_TILES_H_
#define STARRING_KERNELS_CUDA_COLUMN_TILES_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/launch.h"

namespace starring::cuda {

inline constexpr int kElementsPerThread = 16;
inline constexpr int kTileElements = kElementsPerThread * kBlockThreads;

struct ColumnTiles {
  int64_t rows = 0, channels = 0;
  int lanes = 1;
  int tile_rows = kTileElements;  // kTileElements / lanes
  int64_t tiles = 1;              // along rows
  int64_t groups = 1;             // of `lanes` channels

  ColumnTiles() = default;
  ColumnTiles(int64_t rows_in, int64_t channels_in) : rows(rows_in), channels(channels_in) {
    while (lanes < 32 && lanes < channels) lanes *= 2;
    tile_rows = kTileElements / lanes;
    tiles = CeilDivide(rows, tile_rows);
    groups = CeilDivide(channels, lanes);
  }

  // tiles * groups blocks: a tile's neighbours along channels run at the same time and share its cache lines.
  LaunchShape Launch() const { return {.blocks = tiles * groups}; }
  // One block for each group of channels, to merge what the tiles left.
  LaunchShape LaunchMerge() const { return {.blocks = groups}; }

  __device__ int64_t RowsOfTile(int64_t tile) const {
    const int64_t left = rows - tile * tile_rows;
    return left < tile_rows ? left : tile_rows;
  }
};

// Where a thread stands. Threads beyond the last channel take part in sums with zeros.
// REQUIRES: channels % kWidth == 0.
template <int kWidth>
struct ColumnPlace {
  // Packs that a thread of a tile sees.
  static constexpr int kPacks = kElementsPerThread / kWidth;

  int64_t tile, channel, first_row;
  int row_lane, row_lanes;  // row_lanes: kBlockThreads / pack lanes
  bool has_channel;

  __device__ ColumnPlace(const ColumnTiles& tiles, int64_t block) : tile(block / tiles.groups) {
    const int thread = static_cast<int>(threadIdx.x), pack_lanes = tiles.lanes / kWidth;
    row_lane = thread / pack_lanes;
    row_lanes = kBlockThreads / pack_lanes;
    channel = block % tiles.groups * tiles.lanes + thread % pack_lanes * kWidth;
    first_row = tile * tiles.tile_rows + row_lane;
    has_channel = channel < tiles.channels;
  }

  // The row of the thread's pack `i`, and whether there is one.
  __device__ int64_t Row(int i) const { return first_row + int64_t{i} * row_lanes; }
  __device__ bool Has(const ColumnTiles& tiles, int64_t row) const { return has_channel && row < tiles.rows; }
  // One thread for each pack of channels.
  __device__ bool IsFirst() const { return has_channel && row_lane == 0; }
};

// The sum of `value`, a number or a pack of kWidth, over the threads of the same channels, for each of them, by a tree:
// the same order on every run. `buffer` is shared memory of kBlockThreads; every thread of the block calls.
template <int kWidth, typename T>
__device__ inline T SumOfColumn(const T& value, const ColumnTiles& tiles, T* buffer) {
  const int thread = static_cast<int>(threadIdx.x), pack_lanes = tiles.lanes / kWidth;
  buffer[thread] = value;
  for (int stride = kBlockThreads / 2; stride >= pack_lanes; stride /= 2) {
    __syncthreads();
    if (thread < stride) buffer[thread] += buffer[thread + stride];
  }
  __syncthreads();
  const T sum = buffer[thread % pack_lanes];
  __syncthreads();  // the buffer may be written again
  return sum;
}

}  // namespace starring::cuda

#endif  // STARRING_KERNELS_CUDA_COLUMN_TILES_H_
