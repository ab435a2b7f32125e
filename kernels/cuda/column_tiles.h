// How blocks walk down the columns of a (rows, channels) matrix, and add up the sums of their threads.
//
// Words. A *group* is `lanes` neighbouring channels: a power of two, at most 32. A *tile* is the part that one block
// treats: a group by `tile_rows` rows. A *pack* is kWidth neighbouring channels: 4, moved by one access, or 1
// where a row is no whole number of packs. A tile has lanes / kWidth *pack lanes*. Thread t has pack t % pack lanes, in
// row t / pack lanes and in every (threads / pack lanes)-th row after it, so that a warp reads neighbouring floats
// whatever the number of channels. A thread takes kPacks of its packs in a *step*. Tiles are the same for both widths.
//
// Each tile stores its sums. The last block of a group to finish (IsLastBlock) adds the sums of the group's tiles in
// the order of the tiles, so the result does not depend on which block is the last. No second kernel is needed. Tiles
// are long enough that one block has few of them to add.
//
// Device code of .cu files; ColumnTiles is made on the host.
#ifndef STARRING_KERNELS_CUDA_COLUMN_TILES_H_
#define STARRING_KERNELS_CUDA_COLUMN_TILES_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.h"

namespace starring::cuda {

inline constexpr int kPacks = 4;
// kWidth where rows are whole packs, whatever the type in memory: a thread holds several packs as floats, and with
// packs of eight, nvcc 13.0 spills registers.
inline constexpr int kColumnPack = kPackFloats;
inline constexpr int kStepElements = kPacks * kPackFloats * kBlockThreads;  // of a block, in packs of four

// The most blocks, unless there are more groups. All of them run at a time if each of an H100's 132 multiprocessors
// holds four, for which kernels must leave registers (kTileBlocksHeld). With 16 channels, the last block's threads then
// read 32 tiles each.
inline constexpr int64_t kTileBlocksMax = 512;
inline constexpr int kTileBlocksHeld = 4;

struct ColumnTiles {
  int64_t rows = 0, channels = 0;
  int lanes = 1;
  int64_t tile_rows = kStepElements;
  int64_t tiles = 1;  // along rows
  int64_t groups = 1;

  ColumnTiles() = default;
  ColumnTiles(int64_t rows_in, int64_t channels_in) : rows(rows_in), channels(channels_in) {
    while (lanes < 32 && lanes < channels) lanes *= 2;
    groups = CeilDivide(channels, lanes);
    const int64_t step_rows = kStepElements / lanes, steps = CeilDivide(rows, step_rows);
    const int64_t tiles_max = groups < kTileBlocksMax ? kTileBlocksMax / groups : 1;
    tile_rows = step_rows * CeilDivide(steps, tiles_max);
    tiles = CeilDivide(rows, tile_rows);
  }

  // tiles * groups blocks: a tile's neighbours along channels run at the same time and share its cache lines.
  LaunchShape Launch() const { return {.blocks = tiles * groups}; }
  // The group of a block.
  __device__ int64_t GroupOf(int64_t block) const { return block % groups; }

  __device__ int64_t RowsOfTile(int64_t tile) const {
    const int64_t left = rows - tile * tile_rows;
    return left < tile_rows ? left : tile_rows;
  }
};

// The part of a tile that a thread treats. Threads beyond the last channel take part in sums with zeros.
// REQUIRES: channels % kWidth == 0.
template <int kWidth>
struct ColumnPlace {
  int64_t tile, channel, first_row, end_row;  // the thread's first row, and the tile's end
  int row_lane, row_lanes;                    // row_lanes: kBlockThreads / pack lanes
  int64_t pitch;                              // elements from one of the thread's packs to the next
  bool has_channel;

  __device__ ColumnPlace(const ColumnTiles& tiles, int64_t block) : tile(block / tiles.groups) {
    const int thread = static_cast<int>(threadIdx.x), pack_lanes = tiles.lanes / kWidth;
    row_lane = thread / pack_lanes;
    row_lanes = kBlockThreads / pack_lanes;
    channel = tiles.GroupOf(block) * tiles.lanes + thread % pack_lanes * kWidth;
    first_row = tile * tiles.tile_rows + row_lane;
    end_row = tile * tiles.tile_rows + tiles.RowsOfTile(tile);
    pitch = row_lanes * tiles.channels;
    has_channel = channel < tiles.channels;
  }

  // A thread's steps begin at rows first_row, first_row + StepRows and so on below end_row; some threads have one step
  // less than others. A step's first pack is at Element(row), its others `pitch` apart; it has PacksFrom(row) packs.
  __device__ int StepRows() const { return kPacks * row_lanes; }
  __device__ int64_t Element(const ColumnTiles& tiles, int64_t row) const { return row * tiles.channels + channel; }
  __device__ int PacksFrom(int64_t row) const {
    const int64_t left = end_row - row;
    return left >= StepRows() ? kPacks : (static_cast<int>(left) + row_lanes - 1) / row_lanes;
  }
  // True for one thread of each pack of channels.
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
