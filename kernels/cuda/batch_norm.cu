#include "kernels/cuda/batch_norm.h"
#include "kernels/cuda/column_tiles.h"
#include "kernels/cuda/for_each.h"

namespace starring::cuda {
namespace {

// Two sums of a tile's channel; sums: (tiles, 2, channels).
__device__ inline void StoreTile(const ColumnTiles& tiles, const ColumnPlace& at, float first, float second,
                                 float* sums) {
  if (!at.has_channel || at.row_lane != 0) return;
  float* const out = sums + at.tile * 2 * tiles.channels + at.channel;
  out[0] = first;
  out[tiles.channels] = second;
}

// sums: (tiles, 2, channels): the sum of x, then of squared distances from the tile's mean.
__global__ void __launch_bounds__(kBlockThreads) StatisticsKernel(ColumnTiles tiles, const float* x, float* sums) {
  __shared__ float buffer[kBlockThreads];
  const ColumnPlace at(tiles, blockIdx.x);
  float values[kRowsPerThread];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kRowsPerThread; ++i) {
    const int64_t row = at.first_row + int64_t{i} * tiles.row_lanes;
    values[i] = at.has_channel && row < tiles.rows ? x[row * tiles.channels + at.channel] : 0.0f;
    sum += values[i];
  }
  sum = SumOfChannel(sum, tiles, buffer);
  const float mean = sum / static_cast<float>(tiles.RowsOfTile(at.tile));
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kRowsPerThread; ++i) {
    const int64_t row = at.first_row + int64_t{i} * tiles.row_lanes;
    const float distance = row < tiles.rows ? values[i] - mean : 0.0f;
    squares += distance * distance;
  }
  squares = SumOfChannel(squares, tiles, buffer);
  StoreTile(tiles, at, sum, squares, sums);
}

struct MergeStatisticsArgs {
  ColumnTiles tiles;
  const float* sums;
  const float* gamma;
  float* running_mean;
  float* running_variance;
  float* mean;
  float* inverse_deviation;
  float* scale;
  float epsilon, momentum;
};

__global__ void __launch_bounds__(kBlockThreads) MergeStatisticsKernel(MergeStatisticsArgs g) {
  __shared__ double buffer[kBlockThreads];
  const ColumnPlace at(g.tiles, blockIdx.x);
  const int64_t channels = g.tiles.channels, c = at.channel;
  const double rows = static_cast<double>(g.tiles.rows);
  double sum = 0;
  if (at.has_channel) {
    for (int64_t tile = at.row_lane; tile < g.tiles.tiles; tile += g.tiles.row_lanes) {
      sum += g.sums[tile * 2 * channels + c];
    }
  }
  const double mean = SumOfChannel(sum, g.tiles, buffer) / rows;
  double squares = 0;
  if (at.has_channel) {
    for (int64_t tile = at.row_lane; tile < g.tiles.tiles; tile += g.tiles.row_lanes) {
      const float tile_rows = static_cast<float>(g.tiles.RowsOfTile(tile));
      const double distance = g.sums[tile * 2 * channels + c] / tile_rows - mean;
      squares += g.sums[(tile * 2 + 1) * channels + c] + tile_rows * distance * distance;
    }
  }
  squares = SumOfChannel(squares, g.tiles, buffer);
  if (!at.has_channel || at.row_lane != 0) return;
  const float inverse_deviation = static_cast<float>(1.0 / sqrt(squares / rows + g.epsilon));
  g.mean[c] = static_cast<float>(mean);
  g.inverse_deviation[c] = inverse_deviation;
  g.scale[c] = g.gamma[c] * inverse_deviation;
  const double keep = 1.0 - g.momentum;
  g.running_mean[c] = static_cast<float>(keep * g.running_mean[c] + g.momentum * mean);
  // One value says nothing about the variance: it stays.
  if (g.tiles.rows == 1) return;
  g.running_variance[c] = static_cast<float>(keep * g.running_variance[c] + g.momentum * (squares / (rows - 1.0)));
}

__global__ void __launch_bounds__(kBlockThreads)
    InferenceScaleKernel(int64_t channels, const float* gamma, const float* variance, float epsilon, float* scale) {
  const int64_t c = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  if (c < channels) scale[c] = gamma[c] / sqrtf(variance[c] + epsilon);
}

// y = act((x - mean) * scale + shift), per channel.
template <bool kRelu>
struct NormaliseBody {
  Divisor channels;
  const float* x;
  const float* mean;
  const float* scale;
  const float* shift;
  float* y;
  template <int kWidth>
  __device__ void Run(int64_t i) const {
    const int64_t c = channels.Split(static_cast<uint32_t>(i)).remainder;
    Pack<float, kWidth> v = LoadPack<kWidth>(x + i);
    const Pack<float, kWidth> m = LoadPack<kWidth>(mean + c), s = LoadPack<kWidth>(scale + c);
    const Pack<float, kWidth> b = LoadPack<kWidth>(shift + c);
    for (int k = 0; k < kWidth; ++k) {
      const float normal = (v.v[k] - m.v[k]) * s.v[k] + b.v[k];
      v.v[k] = kRelu ? ReluOf(normal) : normal;
    }
    StorePack(v, y + i);
  }
};

// sums: (tiles, 2, channels): the sum of g, then of g * (x - mean).
template <Mask kMask>
__global__ void __launch_bounds__(kBlockThreads)
    GradientSumsKernel(ColumnTiles tiles, const float* x, const float* mean, const float* y, const float* dy,
                       float* sums) {
  __shared__ float buffer[kBlockThreads];
  const ColumnPlace at(tiles, blockIdx.x);
  const float m = at.has_channel ? mean[at.channel] : 0.0f;
  float sum = 0, product = 0;
#pragma unroll
  for (int i = 0; i < kRowsPerThread; ++i) {
    const int64_t row = at.first_row + int64_t{i} * tiles.row_lanes;
    const int64_t element = row * tiles.channels + at.channel;
    const bool inside = at.has_channel && row < tiles.rows;
    const float distance = inside ? x[element] - m : 0.0f;
    float gradient = inside ? dy[element] : 0.0f;
    if (kMask == Mask::kRelu) gradient = inside && y[element] > 0.0f ? gradient : 0.0f;
    sum += gradient;
    product += gradient * distance;
  }
  sum = SumOfChannel(sum, tiles, buffer);
  product = SumOfChannel(product, tiles, buffer);
  StoreTile(tiles, at, sum, product, sums);
}

struct MergeGradientsArgs {
  ColumnTiles tiles;
  const float* sums;
  const float* gamma;
  const float* inverse_deviation;
  float* dgamma;
  float* dbeta;
  float* scale;
  float* shift;
  float* slope;
};

__global__ void __launch_bounds__(kBlockThreads) MergeGradientsKernel(MergeGradientsArgs g) {
  __shared__ double buffer[kBlockThreads];
  const ColumnPlace at(g.tiles, blockIdx.x);
  const int64_t channels = g.tiles.channels, c = at.channel;
  double sum = 0, product = 0;
  if (at.has_channel) {
    for (int64_t tile = at.row_lane; tile < g.tiles.tiles; tile += g.tiles.row_lanes) {
      sum += g.sums[tile * 2 * channels + c];
      product += g.sums[(tile * 2 + 1) * channels + c];
    }
  }
  sum = SumOfChannel(sum, g.tiles, buffer);
  product = SumOfChannel(product, g.tiles, buffer);
  if (!at.has_channel || at.row_lane != 0) return;
  const double rows = static_cast<double>(g.tiles.rows), inverse_deviation = g.inverse_deviation[c];
  g.dbeta[c] = static_cast<float>(sum);
  g.dgamma[c] = static_cast<float>(product * inverse_deviation);
  g.scale[c] = g.gamma[c] * g.inverse_deviation[c];
  g.shift[c] = static_cast<float>(sum / rows);
  g.slope[c] = static_cast<float>(product * inverse_deviation * inverse_deviation / rows);
}

// dx = scale * (g - shift - (x - mean) * slope), per channel.
template <bool kRelu>
struct InputGradientBody {
  Divisor channels;
  const float* x;
  const float* y;
  const float* dy;
  const float* mean;
  const float* scale;
  const float* shift;
  const float* slope;
  float* dx;
  template <int kWidth>
  __device__ void Run(int64_t i) const {
    const int64_t c = channels.Split(static_cast<uint32_t>(i)).remainder;
    Pack<float, kWidth> g = LoadPack<kWidth>(dy + i);
    if (kRelu) {
      const Pack<float, kWidth> out = LoadPack<kWidth>(y + i);
      for (int k = 0; k < kWidth; ++k) g.v[k] = out.v[k] > 0.0f ? g.v[k] : 0.0f;
    }
    const Pack<float, kWidth> v = LoadPack<kWidth>(x + i), m = LoadPack<kWidth>(mean + c);
    const Pack<float, kWidth> s = LoadPack<kWidth>(scale + c), t = LoadPack<kWidth>(shift + c);
    const Pack<float, kWidth> p = LoadPack<kWidth>(slope + c);
    for (int k = 0; k < kWidth; ++k) g.v[k] = s.v[k] * (g.v[k] - t.v[k] - (v.v[k] - m.v[k]) * p.v[k]);
    StorePack(g, dx + i);
  }
};

// A pack never crosses from the last channel to the first of the next row.
template <typename... Pointers>
Alignment AlignmentOf(const BatchNormShape& shape, const Pointers*... pointers) {
  return shape.channels % kPackFloats == 0 && AlignedForPacks(pointers...) ? Alignment::kPacks : Alignment::kElements;
}

template <bool kRelu>
cudaError_t Normalise(cudaStream_t stream, const BatchNormShape& shape, const NormaliseBody<kRelu>& body) {
  const Alignment alignment = AlignmentOf(shape, body.x, body.mean, body.scale, body.shift, body.y);
  return ForEach(stream, shape.rows * shape.channels, alignment, body);
}

struct NormaliseArgs {
  const float* x;
  const float* mean;
  const float* scale;
  const float* shift;
  float* y;
};

cudaError_t Normalise(cudaStream_t stream, const BatchNormShape& shape, const NormaliseArgs& g) {
  const Divisor channels(shape.channels);
  if (shape.activation == Mask::kRelu) {
    return Normalise(stream, shape, NormaliseBody<true>{channels, g.x, g.mean, g.scale, g.shift, g.y});
  }
  return Normalise(stream, shape, NormaliseBody<false>{channels, g.x, g.mean, g.scale, g.shift, g.y});
}

template <bool kRelu>
cudaError_t InputGradient(cudaStream_t stream, const BatchNormShape& shape, const BatchNormMemory& memory,
                          const BatchNormBackwardArgs& args) {
  const InputGradientBody<kRelu> body = {
      Divisor(shape.channels), args.x, args.y, args.dy, memory.mean, memory.scale, memory.shift, memory.slope, args.dx};
  const Alignment alignment = AlignmentOf(shape, args.x, kRelu ? args.y : args.x, args.dy, args.dx, memory.mean,
                                          memory.scale, memory.shift, memory.slope);
  return ForEach(stream, shape.rows * shape.channels, alignment, body);
}

}  // namespace

int64_t BatchNormSumsFloats(const BatchNormShape& shape) {
  return ColumnTiles(shape.rows, shape.channels).tiles * 2 * shape.channels;
}

cudaError_t BatchNormForward(cudaStream_t stream, const BatchNormShape& shape, const BatchNormMemory& memory,
                             const BatchNormForwardArgs& args) {
  const ColumnTiles tiles(shape.rows, shape.channels);
  cudaError_t error = Launch(stream, tiles.Launch(), StatisticsKernel, tiles, args.x, memory.sums);
  if (error != cudaSuccess) return error;
  const MergeStatisticsArgs merge = {.tiles = tiles,
                                     .sums = memory.sums,
                                     .gamma = args.gamma,
                                     .running_mean = args.running_mean,
                                     .running_variance = args.running_variance,
                                     .mean = memory.mean,
                                     .inverse_deviation = memory.inverse_deviation,
                                     .scale = memory.scale,
                                     .epsilon = shape.epsilon,
                                     .momentum = shape.momentum};
  error = Launch(stream, tiles.LaunchMerge(), MergeStatisticsKernel, merge);
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
  const ColumnTiles tiles(shape.rows, shape.channels);
  const bool relu = shape.activation == Mask::kRelu;
  const auto kernel = relu ? GradientSumsKernel<Mask::kRelu> : GradientSumsKernel<Mask::kNone>;
  cudaError_t error = Launch(stream, tiles.Launch(), kernel, tiles, args.x, memory.mean, args.y, args.dy, memory.sums);
  if (error != cudaSuccess) return error;
  const MergeGradientsArgs merge = {.tiles = tiles,
                                    .sums = memory.sums,
                                    .gamma = args.gamma,
                                    .inverse_deviation = memory.inverse_deviation,
                                    .dgamma = args.dgamma,
                                    .dbeta = args.dbeta,
                                    .scale = memory.scale,
                                    .shift = memory.shift,
                                    .slope = memory.slope};
  error = Launch(stream, tiles.LaunchMerge(), MergeGradientsKernel, merge);
  if (error != cudaSuccess) return error;
  return relu ? InputGradient<true>(stream, shape, memory, args) : InputGradient<false>(stream, shape, memory, args);
}

}  // namespace starring::cuda
