#include "kernels/cuda/bias_gradient.h"
#include "kernels/cuda/column_tiles.h"
#include "kernels/cuda/pack.h"

namespace starring::cuda {
namespace {

// sums: (tiles, channels).
template <Mask kMask>
__global__ void __launch_bounds__(kBlockThreads)
    TileSumsKernel(ColumnTiles tiles, const float* __restrict__ y, float* __restrict__ dy, float* __restrict__ sums) {
  __shared__ float buffer[kBlockThreads];
  const ColumnPlace at(tiles, blockIdx.x);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kRowsPerThread; ++i) {
    const int64_t row = at.first_row + int64_t{i} * tiles.row_lanes;
    const int64_t element = row * tiles.channels + at.channel;
    const bool inside = at.has_channel && row < tiles.rows;
    float gradient = inside ? dy[element] : 0.0f;
    if (kMask == Mask::kRelu) {
      gradient = inside && y[element] > 0.0f ? gradient : 0.0f;
      if (inside) dy[element] = gradient;
    }
    sum += gradient;
  }
  sum = SumOfChannel(sum, tiles, buffer);
  if (at.has_channel && at.row_lane == 0) sums[at.tile * tiles.channels + at.channel] = sum;
}

__global__ void __launch_bounds__(kBlockThreads) MergeSumsKernel(ColumnTiles tiles, const float* sums, float* dbias) {
  __shared__ double buffer[kBlockThreads];
  const ColumnPlace at(tiles, blockIdx.x);
  double sum = 0;
  if (at.has_channel) {
    for (int64_t tile = at.row_lane; tile < tiles.tiles; tile += tiles.row_lanes) {
      sum += sums[tile * tiles.channels + at.channel];
    }
  }
  sum = SumOfChannel(sum, tiles, buffer);
  if (at.has_channel && at.row_lane == 0) dbias[at.channel] = static_cast<float>(sum);
}

template <Mask kMask>
__global__ void __launch_bounds__(kBlockThreads)
    AddBiasKernel(int64_t count, Divisor channels, const float* bias, float* y) {
  const int64_t i = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  if (i >= count) return;
  float v = y[i];
  if (bias != nullptr) v += bias[channels.Split(static_cast<uint32_t>(i)).remainder];
  y[i] = kMask == Mask::kRelu ? ReluOf(v) : v;
}

}  // namespace

int64_t BiasGradientPartialFloats(int64_t rows, int64_t channels) {
  const ColumnTiles tiles(rows, channels);
  return tiles.tiles > 1 ? tiles.tiles * channels : 0;
}

cudaError_t BiasGradient(cudaStream_t stream, const BiasGradientArgs& args) {
  const ColumnTiles tiles(args.rows, args.channels);
  float* const sums = tiles.tiles > 1 ? args.partial : args.dbias;
  const auto kernel = args.mask == Mask::kRelu ? TileSumsKernel<Mask::kRelu> : TileSumsKernel<Mask::kNone>;
  const cudaError_t error = Launch(stream, tiles.Launch(), kernel, tiles, args.y, args.dy, sums);
  if (error != cudaSuccess || tiles.tiles == 1) return error;
  return Launch(stream, tiles.LaunchMerge(), MergeSumsKernel, tiles, sums, args.dbias);
}

cudaError_t AddBias(cudaStream_t stream, const AddBiasArgs& args) {
  const int64_t count = args.rows * args.channels;
  const auto kernel = args.activation == Mask::kRelu ? AddBiasKernel<Mask::kRelu> : AddBiasKernel<Mask::kNone>;
  return Launch(stream, {.blocks = CeilDivide(count, kBlockThreads)}, kernel, count, Divisor(args.channels), args.bias,
                args.y);
}

}  // namespace starring::cuda
