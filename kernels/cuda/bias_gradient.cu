#include "kernels/cuda/bias_gradient.h"
#include "kernels/cuda/column_tiles.h"
#include "kernels/cuda/for_each.h"

namespace starring::cuda {
namespace {

// sums: (tiles, channels).
template <Mask kMask, int kWidth>
__global__ void __launch_bounds__(kBlockThreads)
    TileSumsKernel(ColumnTiles tiles, const float* __restrict__ y, float* __restrict__ dy, float* __restrict__ sums) {
  using Floats = Pack<float, kWidth>;
  __shared__ Floats buffer[kBlockThreads];
  const ColumnPlace<kWidth> at(tiles, blockIdx.x);
  Floats sum = {};
#pragma unroll
  for (int i = 0; i < at.kPacks; ++i) {
    const int64_t row = at.Row(i), element = row * tiles.channels + at.channel;
    const bool exists = at.Has(tiles, row);
    Floats gradient = LoadPackIf<kWidth>(exists, dy + element);
    if (kMask == Mask::kRelu) {
      gradient = ReluGradientOf(LoadPackIf<kWidth>(exists, y + element), gradient);
      if (exists) StorePack(gradient, dy + element);
    }
    sum += gradient;
  }
  sum = SumOfColumn<kWidth>(sum, tiles, buffer);
  if (at.IsFirst()) StorePack(sum, sums + at.tile * tiles.channels + at.channel);
}

__global__ void __launch_bounds__(kBlockThreads) MergeSumsKernel(ColumnTiles tiles, const float* sums, float* dbias) {
  __shared__ double buffer[kBlockThreads];
  const ColumnPlace<1> at(tiles, blockIdx.x);
  double sum = 0;
  if (at.has_channel) {
    for (int64_t tile = at.row_lane; tile < tiles.tiles; tile += at.row_lanes) {
      sum += sums[tile * tiles.channels + at.channel];
    }
  }
  sum = SumOfColumn<1>(sum, tiles, buffer);
  if (at.IsFirst()) dbias[at.channel] = static_cast<float>(sum);
}

template <Mask kMask>
cudaError_t TileSums(cudaStream_t stream, const ColumnTiles& tiles, const BiasGradientArgs& args, float* sums) {
  const float* const y = kMask == Mask::kRelu ? args.y : nullptr;
  const bool by_packs = AlignmentOfChannels(args.channels, y, args.dy, sums) == Alignment::kPacks;
  const auto kernel = by_packs ? TileSumsKernel<kMask, kPackFloats> : TileSumsKernel<kMask, 1>;
  return Launch(stream, tiles.Launch(), kernel, tiles, y, args.dy, sums);
}

template <Mask kMask>
struct AddBiasBody {
  Divisor channels;
  const float* bias;
  float* y;

  template <int kWidth>
  __device__ void Run(int64_t i) const {
    auto v = LoadPack<kWidth>(y + i);
    if (bias != nullptr) v += LoadPack<kWidth>(bias + channels.Split(static_cast<uint32_t>(i)).remainder);
    for (float& e : v.v) e = kMask == Mask::kRelu ? ReluOf(e) : e;
    StorePack(v, y + i);
  }
};

template <Mask kMask>
cudaError_t AddBiasTo(cudaStream_t stream, const AddBiasArgs& args) {
  return ForEach(stream, args.rows * args.channels, AlignmentOfChannels(args.channels, args.bias, args.y),
                 AddBiasBody<kMask>{Divisor(args.channels), args.bias, args.y});
}

}  // namespace

int64_t BiasGradientPartialFloats(int64_t rows, int64_t channels) {
  const ColumnTiles tiles(rows, channels);
  return tiles.tiles > 1 ? tiles.tiles * channels : 0;
}

cudaError_t BiasGradient(cudaStream_t stream, const BiasGradientArgs& args) {
  const ColumnTiles tiles(args.rows, args.channels);
  float* const sums = tiles.tiles > 1 ? args.partial : args.dbias;
  const cudaError_t error = args.mask == Mask::kRelu ? TileSums<Mask::kRelu>(stream, tiles, args, sums)
                                                     : TileSums<Mask::kNone>(stream, tiles, args, sums);
  if (error != cudaSuccess || tiles.tiles == 1) return error;
  return Launch(stream, tiles.LaunchMerge(), MergeSumsKernel, tiles, sums, args.dbias);
}

cudaError_t AddBias(cudaStream_t stream, const AddBiasArgs& args) {
  return args.activation == Mask::kRelu ? AddBiasTo<Mask::kRelu>(stream, args) : AddBiasTo<Mask::kNone>(stream, args);
}

}  // namespace starring::cuda
