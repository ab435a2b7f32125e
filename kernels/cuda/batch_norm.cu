#include "kernels/cuda/batch_norm.h"
#include "kernels/cuda/column_tiles.h"
#include "kernels/cuda/for_each.h"

namespace starring::cuda {
namespace {

// Two sums of a tile's channels; sums: (tiles, 2, channels).
template <int kWidth>
__device__ inline void StoreTile(const ColumnTiles& tiles, const ColumnPlace<kWidth>& at,
                                 const Pack<float, kWidth>& first, const Pack<float, kWidth>& second, float* sums) {
  if (!at.IsFirst()) return;
  float* const out = sums + at.tile * 2 * tiles.channels + at.channel;
  StorePack(first, out);
  StorePack(second, out + tiles.channels);
}

// sums: (tiles, 2, channels): the sum of x, then of squared distances from the tile's mean.
template <int kWidth>
__global__ void __launch_bounds__(kBlockThreads) StatisticsKernel(ColumnTiles tiles, const float* x, float* sums) {
  using Floats = Pack<float, kWidth>;
  __shared__ Floats buffer[kBlockThreads];
  const ColumnPlace<kWidth> at(tiles, blockIdx.x);
  Floats values[at.kPacks];
  Floats sum = {};
#pragma unroll
  for (int i = 0; i < at.kPacks; ++i) {
    const int64_t row = at.Row(i);
    values[i] = LoadPackIf<kWidth>(at.Has(tiles, row), x + row * tiles.channels + at.channel);
    sum += values[i];
  }
  sum = SumOfColumn<kWidth>(sum, tiles, buffer);
  Floats mean = sum, squares = {};
  for (float& m : mean.v) m /= static_cast<float>(tiles.RowsOfTile(at.tile));
#pragma unroll
  for (int i = 0; i < at.kPacks; ++i) {
    const bool exists = at.Row(i) < tiles.rows;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const float distance = exists ? values[i].v[k] - mean.v[k] : 0.0f;
      squares.v[k] += distance * distance;
    }
  }
  squares = SumOfColumn<kWidth>(squares, tiles, buffer);
  StoreTile(tiles, at, sum, squares, sums);
}

__global__ void __launch_bounds__(kBlockThreads)
    MergeStatisticsKernel(ColumnTiles tiles, BatchNormShape shape, BatchNormMemory memory, BatchNormForwardArgs g) {
  __shared__ double buffer[kBlockThreads];
  const ColumnPlace<1> at(tiles, blockIdx.x);
  const int64_t channels = tiles.channels, c = at.channel;
  const double rows = static_cast<double>(tiles.rows);
  double sum = 0;
  if (at.has_channel) {
    for (int64_t tile = at.row_lane; tile < tiles.tiles; tile += at.row_lanes) {
      sum += memory.sums[tile * 2 * channels + c];
    }
  }
  const double mean = SumOfColumn<1>(sum, tiles, buffer) / rows;
  double squares = 0;
  if (at.has_channel) {
    for (int64_t tile = at.row_lane; tile < tiles.tiles; tile += at.row_lanes) {
      const float tile_rows = static_cast<float>(tiles.RowsOfTile(tile));
      const double distance = memory.sums[tile * 2 * channels + c] / tile_rows - mean;
      squares += memory.sums[(tile * 2 + 1) * channels + c] + tile_rows * distance * distance;
    }
  }
  squares = SumOfColumn<1>(squares, tiles, buffer);
  if (!at.IsFirst()) return;
  const float inverse_deviation = static_cast<float>(1.0 / sqrt(squares / rows + shape.epsilon));
  memory.mean[c] = static_cast<float>(mean);
  memory.inverse_deviation[c] = inverse_deviation;
  memory.scale[c] = g.gamma[c] * inverse_deviation;
  const double keep = 1.0 - shape.momentum;
  g.running_mean[c] = static_cast<float>(keep * g.running_mean[c] + shape.momentum * mean);
  // One value says nothing about the variance: it stays.
  if (tiles.rows == 1) return;
  g.running_variance[c] = static_cast<float>(keep * g.running_variance[c] + shape.momentum * (squares / (rows - 1.0)));
}

__global__ void __launch_bounds__(kBlockThreads)
    InferenceScaleKernel(int64_t channels, const float* gamma, const float* variance, float epsilon, float* scale) {
  const int64_t c = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  if (c < channels) scale[c] = gamma[c] / sqrtf(variance[c] + epsilon);
}

struct NormaliseArgs {
  const float* x;
  const float* mean;
  const float* scale;
  const float* shift;
  float* y;
};

// y = act((x - mean) * scale + shift), per channel.
template <Mask kMask>
struct NormaliseBody {
  Divisor channels;
  NormaliseArgs g;
  template <int kWidth>
  __device__ void Run(int64_t i) const {
    const int64_t c = channels.Split(static_cast<uint32_t>(i)).remainder;
    Pack<float, kWidth> v = LoadPack<kWidth>(g.x + i);
    const Pack<float, kWidth> m = LoadPack<kWidth>(g.mean + c), s = LoadPack<kWidth>(g.scale + c);
    const Pack<float, kWidth> b = LoadPack<kWidth>(g.shift + c);
    for (int k = 0; k < kWidth; ++k) {
      const float normal = (v.v[k] - m.v[k]) * s.v[k] + b.v[k];
      v.v[k] = kMask == Mask::kRelu ? ReluOf(normal) : normal;
    }
    StorePack(v, g.y + i);
  }
};

cudaError_t Normalise(cudaStream_t stream, const BatchNormShape& s, const NormaliseArgs& g) {
  const Divisor channels(s.channels);
  const int64_t count = s.rows * s.channels;
  const Alignment alignment = AlignmentOfChannels(s.channels, g.x, g.mean, g.scale, g.shift, g.y);
  return s.activation == Mask::kRelu ? ForEach(stream, count, alignment, NormaliseBody<Mask::kRelu>{channels, g})
                                     : ForEach(stream, count, alignment, NormaliseBody<Mask::kNone>{channels, g});
}

// sums: (tiles, 2, channels): the sum of g, then of g * (x - mean).
template <Mask kMask, int kWidth>
__global__ void __launch_bounds__(kBlockThreads)
    GradientSumsKernel(ColumnTiles tiles, const float* x, const float* mean, const float* y, const float* dy,
                       float* sums) {
  using Floats = Pack<float, kWidth>;
  __shared__ Floats buffer[kBlockThreads];
  const ColumnPlace<kWidth> at(tiles, blockIdx.x);
  const Floats m = LoadPackIf<kWidth>(at.has_channel, mean + at.channel);
  Floats sum = {}, product = {};
#pragma unroll
  for (int i = 0; i < at.kPacks; ++i) {
    const int64_t row = at.Row(i), element = row * tiles.channels + at.channel;
    const bool exists = at.Has(tiles, row);
    const Floats v = LoadPackIf<kWidth>(exists, x + element);
    Floats gradient = LoadPackIf<kWidth>(exists, dy + element);
    if (kMask == Mask::kRelu) gradient = ReluGradientOf(LoadPackIf<kWidth>(exists, y + element), gradient);
    sum += gradient;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) product.v[k] += exists ? gradient.v[k] * (v.v[k] - m.v[k]) : 0.0f;
  }
  sum = SumOfColumn<kWidth>(sum, tiles, buffer);
  product = SumOfColumn<kWidth>(product, tiles, buffer);
  StoreTile(tiles, at, sum, product, sums);
}

__global__ void __launch_bounds__(kBlockThreads)
    MergeGradientsKernel(ColumnTiles tiles, BatchNormMemory memory, BatchNormBackwardArgs g) {
  __shared__ double buffer[kBlockThreads];
  const ColumnPlace<1> at(tiles, blockIdx.x);
  const int64_t channels = tiles.channels, c = at.channel;
  double sum = 0, product = 0;
  if (at.has_channel) {
    for (int64_t tile = at.row_lane; tile < tiles.tiles; tile += at.row_lanes) {
      sum += memory.sums[tile * 2 * channels + c];
      product += memory.sums[(tile * 2 + 1) * channels + c];
    }
  }
  sum = SumOfColumn<1>(sum, tiles, buffer);
  product = SumOfColumn<1>(product, tiles, buffer);
  if (!at.IsFirst()) return;
  const double rows = static_cast<double>(tiles.rows), inverse_deviation = memory.inverse_deviation[c];
  g.dbeta[c] = static_cast<float>(sum);
  g.dgamma[c] = static_cast<float>(product * inverse_deviation);
  memory.scale[c] = g.gamma[c] * memory.inverse_deviation[c];
  memory.shift[c] = static_cast<float>(sum / rows);
  memory.slope[c] = static_cast<float>(product * inverse_deviation * inverse_deviation / rows);
}

// dx = scale * (gradient - shift - (x - mean) * slope), per channel.
template <Mask kMask>
struct InputGradientBody {
  Divisor channels;
  BatchNormMemory memory;
  BatchNormBackwardArgs g;
  template <int kWidth>
  __device__ void Run(int64_t i) const {
    const int64_t c = channels.Split(static_cast<uint32_t>(i)).remainder;
    Pack<float, kWidth> gradient = LoadPack<kWidth>(g.dy + i);
    if (kMask == Mask::kRelu) gradient = ReluGradientOf(LoadPack<kWidth>(g.y + i), gradient);
    const Pack<float, kWidth> x = LoadPack<kWidth>(g.x + i), mean = LoadPack<kWidth>(memory.mean + c);
    const Pack<float, kWidth> scale = LoadPack<kWidth>(memory.scale + c), shift = LoadPack<kWidth>(memory.shift + c);
    const Pack<float, kWidth> slope = LoadPack<kWidth>(memory.slope + c);
    for (int k = 0; k < kWidth; ++k) {
      gradient.v[k] = scale.v[k] * (gradient.v[k] - shift.v[k] - (x.v[k] - mean.v[k]) * slope.v[k]);
    }
    StorePack(gradient, g.dx + i);
  }
};

template <Mask kMask>
cudaError_t Backward(cudaStream_t stream, const BatchNormShape& shape, const BatchNormMemory& memory,
                     const BatchNormBackwardArgs& args) {
  const ColumnTiles tiles(shape.rows, shape.channels);
  const float* const y = kMask == Mask::kRelu ? args.y : nullptr;
  const Alignment alignment = AlignmentOfChannels(shape.channels, args.x, y, args.dy, args.dx, memory.sums, memory.mean,
                                                  memory.scale, memory.shift, memory.slope);
  const auto sums =
      alignment == Alignment::kPacks ? GradientSumsKernel<kMask, kPackFloats> : GradientSumsKernel<kMask, 1>;
  cudaError_t error = Launch(stream, tiles.Launch(), sums, tiles, args.x, memory.mean, y, args.dy, memory.sums);
  if (error != cudaSuccess) return error;
  error = Launch(stream, tiles.LaunchMerge(), MergeGradientsKernel, tiles, memory, args);
  if (error != cudaSuccess) return error;
  return ForEach(stream, shape.rows * shape.channels, alignment,
                 InputGradientBody<kMask>{Divisor(shape.channels), memory, args});
}

}  // namespace

int64_t BatchNormSumsFloats(const BatchNormShape& shape) {
  return ColumnTiles(shape.rows, shape.channels).tiles * 2 * shape.channels;
}

cudaError_t BatchNormForward(cudaStream_t stream, const BatchNormShape& shape, const BatchNormMemory& memory,
                             const BatchNormForwardArgs& args) {
  const ColumnTiles tiles(shape.rows, shape.channels);
  const bool by_packs = AlignmentOfChannels(shape.channels, args.x, memory.sums) == Alignment::kPacks;
  const auto statistics = by_packs ? StatisticsKernel<kPackFloats> : StatisticsKernel<1>;
  cudaError_t error = Launch(stream, tiles.Launch(), statistics, tiles, args.x, memory.sums);
  if (error != cudaSuccess) return error;
  error = Launch(stream, tiles.LaunchMerge(), MergeStatisticsKernel, tiles, shape, memory, args);
  if (error != cudaSuccess) return error;
  return Normalise(stream, shape, NormaliseArgs{args.x, memory.mean, memory.scale, args.beta, args.y});
}

cudaError_t BatchNormInfer(cudaStream_t stream, const BatchNormShape& shape, const BatchNormMemory& memory,
                           const BatchNormInferArgs& args) {
  const cudaError_t error = Launch(stream, {.blocks = CeilDivide(shape.channels, kBlockThreads)}, InferenceScaleKernel,
                                   shape.channels, args.gamma, args.running_variance, shape.epsilon, memory.scale);
  if (error != cudaSuccess) return error;
  return Normalise(stream, shape, NormaliseArgs{args.x, args.running_mean, memory.scale, args.beta, args.y});
}

cudaError_t BatchNormBackward(cudaStream_t stream, const BatchNormShape& shape, const BatchNormMemory& memory,
                              const BatchNormBackwardArgs& args) {
  return shape.activation == Mask::kRelu ? Backward<Mask::kRelu>(stream, shape, memory, args)
                                         : Backward<Mask::kNone>(stream, shape, memory, args);
}

}  // namespace starring::cuda
