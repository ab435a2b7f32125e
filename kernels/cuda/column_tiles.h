// How a block walks down the columns of a (rows, channels) matrix, and sums what its threads found.
//
// Words. A *tile* is what one block sees: `lanes` neighbouring channels (a power of two, at most 32) by kRowsPerThread
// * (threads / lanes) rows. Thread t has channel t % lanes; its rows are t / lanes and every (threads / lanes)-th after
// it, so that a warp reads neighbouring floats whatever the number of channels: 16 loads of 4 bytes in flight per
// thread move as many bytes as fewer of 16 would, and any number of channels is legal.
//
// Device code of .cu files; ColumnTiles is made on the host.
#ifndef STARRING_KERNELS_CUDA_COLUMN_TILES_H_
#define STARRING_KERNELS_CUDA_COLUMN_TILES_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/launch.h"

namespace starring::cuda {

inline constexpr int kRowsPerThread = 16;

struct ColumnTiles {
  int64_t rows = 0, channels = 0;
  int lanes = 1;
  int row_lanes = 1;   // kBlockThreads / lanes
  int64_t tiles = 1;   // along rows
  int64_t groups = 1;  // of `lanes` channels

  ColumnTiles() = default;
  ColumnTiles(int64_t rows_in, int64_t channels_in) : rows(rows_in), channels(channels_in) {
    while (lanes < 32 && lanes < channels) lanes *= 2;
    row_lanes = kBlockThreads / lanes;
    tiles = CeilDivide(rows, int64_t{row_lanes} * kRowsPerThread);
    groups = CeilDivide(channels, lanes);
  }

  // tiles * groups blocks: a tile's neighbours along channels run at the same time and share its cache lines.
  LaunchShape Launch() const { return {.blocks = tiles * groups}; }
  // One block for each group of channels, to merge what the tiles left.
  LaunchShape LaunchMerge() const { return {.blocks = groups}; }

  __device__ int64_t RowsOfTile(int64_t tile) const {
    const int64_t size = int64_t{row_lanes} * kRowsPerThread;
    const int64_t left = rows - tile * size;
    return left < size ? left : size;
  }
};

// Where a thread stands. Threads beyond the last channel take part in sums with zeros.
struct ColumnPlace {
  int64_t tile, channel, first_row;
  int row_lane, lane;
  bool has_channel;

  __device__ ColumnPlace(const ColumnTiles& tiles, int64_t block)
      : tile(block / tiles.groups),
        row_lane(static_cast<int>(threadIdx.x) / tiles.lanes),
        lane(static_cast<int>(threadIdx.x) % tiles.lanes) {
    channel = block % tiles.groups * tiles.lanes + lane;
    first_row = tile * tiles.row_lanes * kRowsPerThread + row_lane;
    has_channel = channel < tiles.channels;
  }
};

// The sum of `value` over the threads of one channel, for each of them, by a tree: the same order on every run.
// `buffer` is shared memory of kBlockThreads; every thread of the block calls.
template <typename T>
__device__ inline T SumOfChannel(T value, const ColumnTiles& tiles, T* buffer) {
  const int thread = static_cast<int>(threadIdx.x);
  buffer[thread] = value;
  for (int stride = kBlockThreads / 2; stride >= tiles.lanes; stride /= 2) {
    __syncthreads();
    if (thread < stride) buffer[thread] += buffer[thread + stride];
  }
  __syncthreads();
  const T sum = buffer[thread % tiles.lanes];
  __syncthreads();  // the buffer may be written again
  return sum;
}

}  // namespace starring::cuda

#endif  // STARRING_KERNELS_CUDA_COLUMN_TILES_H_
