#include "kernels/cuda/batch_norm.h"
#include "kernels/cuda/bfloat16.h"
#include "kernels/cuda/column_tiles.h"
#include "kernels/cuda/launch.h"

namespace starring::cuda {
namespace {

// Stores a tile's two sums of each channel into sums (tiles, 2, channels).
template <int kWidth>
__device__ inline void StoreTile(const ColumnTiles& tiles, const ColumnPlace<kWidth>& at,
                                 const Pack<float, kWidth>& first, const Pack<float, kWidth>& second, float* sums) {
  if (!at.IsFirst()) return;
  float* const out = sums + at.tile * 2 * tiles.channels + at.channel;
  StorePack(first, out);
  StorePack(second, out + tiles.channels);
}

// Run by the last block of a group: merges its tiles' sums into the batch's mean and deviation, and updates the running
// ones. A second kernel for this would wait for the first one's slowest block and for a launch.
__device__ inline void MergeStatistics(const ColumnTiles& tiles, const BatchNormShape& shape,
                                       const BatchNormMemory& memory, const BatchNormForwardArgs& g) {
  __shared__ double buffer[kBlockThreads];
  // There is one pass for the mean and one for the squares, which need the mean of all tiles. A channel has at most 512
  // tiles.
  const ColumnPlace<1> at(tiles, tiles.GroupOf(blockIdx.x));
  const int64_t channels = tiles.channels, c = at.channel;
  const double rows = static_cast<double>(tiles.rows);
  double sum = 0;
  if (at.has_channel) {
#pragma unroll 4
    for (int64_t tile = at.row_lane; tile < tiles.tiles; tile += at.row_lanes) {
      sum += memory.sums[tile * 2 * channels + c];
    }
  }
  const double mean = SumOfColumn<1>(sum, tiles, buffer) / rows;
  double squares = 0;
  if (at.has_channel) {
#pragma unroll 2
    for (int64_t tile = at.row_lane; tile < tiles.tiles; tile += at.row_lanes) {
      // A tile's squares are of distances from its own mean. Distances from the common mean add tile_rows * distance^2.
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
  // The scale is for the kernel that normalises, which follows on the stream.
  memory.scale[c] = g.gamma[c] * inverse_deviation;
  const double keep = 1.0 - shape.momentum;
  g.running_mean[c] = static_cast<float>(keep * g.running_mean[c] + shape.momentum * mean);
  // A single value has no variance, and the division below would be by zero: the running variance stays.
  if (tiles.rows == 1) return;
  g.running_variance[c] = static_cast<float>(keep * g.running_variance[c] + shape.momentum * (squares / (rows - 1.0)));
}

// Fills memory.sums (tiles, 2, channels): the sum of x, then of squared distances from the tile's mean.
//
// A thread sums distances from its own first value, and their squares. That value is one of those it sums, so no square
// exceeds the number of values times the sum of squared distances from their mean, and little is lost when the distance
// from the mean is subtracted. Distances from 0 would lose all digits where the mean is large.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kBlockThreads, kTileBlocksHeld)
    StatisticsKernel(ColumnTiles tiles, BatchNormShape shape, BatchNormMemory memory, BatchNormForwardArgs g) {
  using Floats = Pack<float, kWidth>;
  __shared__ Floats buffer[kBlockThreads];
  const ColumnPlace<kWidth> at(tiles, blockIdx.x);
  // A thread without a channel or a row sums zeros: it must not leave before the barriers.
  const bool exists = at.has_channel && at.first_row < at.end_row;
  const T* const all_x = g.x.As<T>();
  const Pack<T, kWidth> first_pack = LoadPackIf<kWidth>(exists, all_x + at.Element(tiles, at.first_row));
  const Floats first = FloatsOf(first_pack);
  Floats sum = {}, squares = {};
  float count = 0;
  for (int64_t row = at.first_row; row < at.end_row; row += at.StepRows()) {
    const T* const x = all_x + at.Element(tiles, row);
    const int packs = at.PacksFrom(row);
    count += static_cast<float>(packs);
    Pack<T, kWidth> values[kPacks];
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      // `first` is taken where there is no value: its distance from `first` is 0.
      values[i] = first_pack;
      if (at.has_channel && i < packs) values[i] = LoadPack<kWidth>(x + i * at.pitch);
    }
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        const float distance = FloatOf(values[i].v[k]) - first.v[k];
        sum.v[k] += distance;
        squares.v[k] += distance * distance;
      }
    }
  }
  // Turns sums of distances from the thread's first value into the sum of x and squared distances from the tile's mean.
  Floats total;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) total.v[k] = count * first.v[k] + sum.v[k];
  total = SumOfColumn<kWidth>(total, tiles, buffer);
  const auto tile_rows = static_cast<float>(tiles.RowsOfTile(at.tile));
  // Let d = x - first, and m be the mean of d. Squared distances from the thread's mean, first + m, sum to (the sum of
  // d^2) - count * m^2. Those from the tile's mean are count * from_tile^2 more, where from_tile is the distance of the
  // two means.
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    const float mean = count > 0.0f ? sum.v[k] / count : 0.0f;
    const float from_tile = first.v[k] - total.v[k] / tile_rows + mean;
    squares.v[k] += count * (from_tile * from_tile - mean * mean);
  }
  squares = SumOfColumn<kWidth>(squares, tiles, buffer);
  StoreTile(tiles, at, total, squares, memory.sums);
  if (!IsLastBlock(memory.counters + tiles.GroupOf(blockIdx.x), tiles.tiles)) return;
  MergeStatistics(tiles, shape, memory, g);
}

__global__ void __launch_bounds__(kBlockThreads)
    InferenceScaleKernel(int64_t channels, const float* gamma, const float* variance, float epsilon, float* scale) {
  const int64_t c = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  if (c < channels) scale[c] = gamma[c] / sqrtf(variance[c] + epsilon);
}

template <typename T>
struct NormaliseArgs {
  const T* x;
  const float* mean;
  const float* scale;
  const float* shift;
  T* y;
};

// y = act((x - mean) * scale + shift), per channel.
template <Mask kMask, typename T>
struct NormaliseBody {
  Divisor channels;
  NormaliseArgs<T> g;
  template <int kWidth>
  __device__ void Run(int64_t i) const {
    const int64_t c = channels.Split(static_cast<uint32_t>(i)).remainder;
    Pack<float, kWidth> v = LoadFloats<kWidth>(g.x + i);
    const Pack<float, kWidth> m = LoadPack<kWidth>(g.mean + c), s = LoadPack<kWidth>(g.scale + c);
    const Pack<float, kWidth> b = LoadPack<kWidth>(g.shift + c);
    for (int k = 0; k < kWidth; ++k) {
      const float normal = (v.v[k] - m.v[k]) * s.v[k] + b.v[k];
      v.v[k] = kMask == Mask::kRelu ? ReluOf(normal) : normal;
    }
    StoreFloats(v, g.y + i);
  }
};

template <typename T>
cudaError_t Normalise(cudaStream_t stream, const BatchNormShape& s, const NormaliseArgs<T>& g) {
  const Divisor channels(s.channels);
  const int64_t count = s.rows * s.channels;
  constexpr int kPack = kPackOf<T>;
  const Alignment alignment = AlignmentOfChannels<kPack>(s.channels, g.x, g.mean, g.scale, g.shift, g.y);
  return s.activation == Mask::kRelu
             ? ForEach<kPack>(stream, count, alignment, NormaliseBody<Mask::kRelu, T>{channels, g})
             : ForEach<kPack>(stream, count, alignment, NormaliseBody<Mask::kNone, T>{channels, g});
}

// Run by the last block of a group: the gradients of its channels, and the factors that dx needs.
__device__ inline void MergeGradients(const ColumnTiles& tiles, const BatchNormMemory& memory,
                                      const BatchNormBackwardArgs& g) {
  __shared__ double buffer[kBlockThreads];
  const ColumnPlace<1> at(tiles, tiles.GroupOf(blockIdx.x));
  const int64_t channels = tiles.channels, c = at.channel;
  double sum = 0, product = 0;
  if (at.has_channel) {
#pragma unroll 4
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
  // The factors of dx = scale * (gradient - shift - (x - mean) * slope). Forward's scale is gone: other operations have
  // used the scratch memory since.
  memory.scale[c] = g.gamma[c] * memory.inverse_deviation[c];
  memory.shift[c] = static_cast<float>(sum / rows);
  memory.slope[c] = static_cast<float>(product * inverse_deviation * inverse_deviation / rows);
}

// Fills memory.sums (tiles, 2, channels): the sum of the gradient, then of the gradient times (x - mean).
template <Mask kMask, typename T, int kWidth>
__global__ void __launch_bounds__(kBlockThreads, kTileBlocksHeld)
    GradientSumsKernel(ColumnTiles tiles, BatchNormMemory memory, BatchNormBackwardArgs g) {
  using Floats = Pack<float, kWidth>;
  __shared__ Floats buffer[kBlockThreads];
  const ColumnPlace<kWidth> at(tiles, blockIdx.x);
  // The products below are with distances from the mean: sums of gradient * x could be large and cancel.
  const Floats mean = LoadPackIf<kWidth>(at.has_channel, memory.mean + at.channel);
  const T* const all_x = g.x.As<T>();
  const T* const all_y = g.y.As<T>();
  const T* const all_dy = g.dy.As<T>();
  Floats sum = {}, product = {};
  for (int64_t row = at.first_row; row < at.end_row; row += at.StepRows()) {
    const int64_t step = at.Element(tiles, row);
    const int packs = at.has_channel ? at.PacksFrom(row) : 0;
#pragma unroll 2  // not 4: with ReLU each has three loads, whose values are held in registers
    for (int i = 0; i < kPacks; ++i) {
      const int64_t element = step + i * at.pitch;
      const Floats x = FloatsOf(LoadPackIf<kWidth>(i < packs, all_x + element));
      Floats gradient = FloatsOf(LoadPackIf<kWidth>(i < packs, all_dy + element));
      if (kMask == Mask::kRelu) {
        gradient = ReluGradientOf(FloatsOf(LoadPackIf<kWidth>(i < packs, all_y + element)), gradient);
      }
      sum += gradient;
#pragma unroll
      for (int k = 0; k < kWidth; ++k) product.v[k] += gradient.v[k] * (x.v[k] - mean.v[k]);
    }
  }
  sum = SumOfColumn<kWidth>(sum, tiles, buffer);
  product = SumOfColumn<kWidth>(product, tiles, buffer);
  StoreTile(tiles, at, sum, product, memory.sums);
  if (!IsLastBlock(memory.counters + tiles.GroupOf(blockIdx.x), tiles.tiles)) return;
  MergeGradients(tiles, memory, g);
}

// dx = scale * (gradient - shift - (x - mean) * slope), per channel.
template <Mask kMask, typename T>
struct InputGradientBody {
  Divisor channels;
  BatchNormMemory memory;
  BatchNormBackwardArgs g;
  template <int kWidth>
  __device__ void Run(int64_t i) const {
    const int64_t c = channels.Split(static_cast<uint32_t>(i)).remainder;
    Pack<float, kWidth> gradient = LoadFloats<kWidth>(g.dy.As<T>() + i);
    // The gradient is masked again, because the first kernel has not stored the masked gradient: dy is only read, and
    // dx may be dy.
    if (kMask == Mask::kRelu) gradient = ReluGradientOf(LoadFloats<kWidth>(g.y.As<T>() + i), gradient);
    const Pack<float, kWidth> x = LoadFloats<kWidth>(g.x.As<T>() + i), mean = LoadPack<kWidth>(memory.mean + c);
    const Pack<float, kWidth> scale = LoadPack<kWidth>(memory.scale + c), shift = LoadPack<kWidth>(memory.shift + c);
    const Pack<float, kWidth> slope = LoadPack<kWidth>(memory.slope + c);
    for (int k = 0; k < kWidth; ++k) {
      gradient.v[k] = scale.v[k] * (gradient.v[k] - shift.v[k] - (x.v[k] - mean.v[k]) * slope.v[k]);
    }
    StoreFloats(gradient, g.dx.As<T>() + i);
  }
};

template <Mask kMask, typename T>
cudaError_t Backward(cudaStream_t stream, const BatchNormShape& shape, const BatchNormMemory& memory,
                     const BatchNormBackwardArgs& args) {
  constexpr int kPack = kPackOf<T>;
  const ColumnTiles tiles(shape.rows, shape.channels);
  const T* const y = kMask == Mask::kRelu ? args.y.As<T>() : nullptr;
  const auto alignment = [&]<int kWidth>() {
    return AlignmentOfChannels<kWidth>(shape.channels, args.x.As<T>(), y, args.dy.As<T>(), args.dx.As<T>(), memory.sums,
                                       memory.mean, memory.scale, memory.shift, memory.slope);
  };
  const bool sums_by_packs = alignment.template operator()<kColumnPack>() == Alignment::kPacks;
  const auto sums = sums_by_packs ? GradientSumsKernel<kMask, T, kColumnPack> : GradientSumsKernel<kMask, T, 1>;
  const cudaError_t error = Launch(stream, tiles.Launch(), sums, tiles, memory, args);
  if (error != cudaSuccess) return error;
  return ForEach<kPack>(stream, shape.rows * shape.channels, alignment.template operator()<kPack>(),
                        InputGradientBody<kMask, T>{Divisor(shape.channels), memory, args});
}

template <typename T>
cudaError_t Forward(cudaStream_t stream, const BatchNormShape& shape, const BatchNormMemory& memory,
                    const BatchNormForwardArgs& args) {
  const ColumnTiles tiles(shape.rows, shape.channels);
  const bool by_packs =
      AlignmentOfChannels<kColumnPack>(shape.channels, args.x.As<T>(), memory.sums) == Alignment::kPacks;
  const auto statistics = by_packs ? StatisticsKernel<T, kColumnPack> : StatisticsKernel<T, 1>;
  const cudaError_t error = Launch(stream, tiles.Launch(), statistics, tiles, shape, memory, args);
  if (error != cudaSuccess) return error;
  return Normalise(stream, shape,
                   NormaliseArgs<T>{args.x.As<T>(), memory.mean, memory.scale, args.beta, args.y.As<T>()});
}

}  // namespace

int64_t BatchNormSumsFloats(const BatchNormShape& shape) {
  return ColumnTiles(shape.rows, shape.channels).tiles * 2 * shape.channels;
}

int64_t BatchNormCounters(const BatchNormShape& shape) { return ColumnTiles(shape.rows, shape.channels).groups; }

cudaError_t BatchNormForward(cudaStream_t stream, const BatchNormShape& shape, const BatchNormMemory& memory,
                             const BatchNormForwardArgs& args) {
  return WithElement([&]<typename T>() { return Forward<T>(stream, shape, memory, args); }, args.x.element(), args.y);
}

cudaError_t BatchNormInfer(cudaStream_t stream, const BatchNormShape& shape, const BatchNormMemory& memory,
                           const BatchNormInferArgs& args) {
  const cudaError_t error = Launch(stream, {.blocks = CeilDivide(shape.channels, kBlockThreads)}, InferenceScaleKernel,
                                   shape.channels, args.gamma, args.running_variance, shape.epsilon, memory.scale);
  if (error != cudaSuccess) return error;
  return WithElement(
      [&]<typename T>() {
        return Normalise(stream, shape,
                         NormaliseArgs<T>{args.x.As<T>(), args.running_mean, memory.scale, args.beta, args.y.As<T>()});
      },
      args.x.element(), args.y);
}

cudaError_t BatchNormBackward(cudaStream_t stream, const BatchNormShape& shape, const BatchNormMemory& memory,
                              const BatchNormBackwardArgs& args) {
  return WithElement(
      [&]<typename T>() {
        return shape.activation == Mask::kRelu ? Backward<Mask::kRelu, T>(stream, shape, memory, args)
                                               : Backward<Mask::kNone, T>(stream, shape, memory, args);
      },
      args.x.element(), args.y, args.dy, args.dx);
}

}  // namespace starring::cuda
