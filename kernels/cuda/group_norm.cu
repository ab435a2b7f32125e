#include <algorithm>

#include "kernels/cuda/bfloat16.h"
#include "kernels/cuda/group_norm.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.h"

namespace starring::cuda {
namespace {

// How the values of a group are found, made on the host: a division in a kernel is a call, which spills registers.
struct GroupGeometry {
  int64_t size, channels;  // values of a group; channels of the tensor
  Divisor groups, group_channels;
  int64_t group_channels_size, image_size;
  double reciprocal_size;

  explicit GroupGeometry(const GroupNormShape& s)
      : size(s.pixels * (s.channels / s.groups)),
        channels(s.channels),
        groups(s.groups),
        group_channels(s.channels / s.groups),
        group_channels_size(s.channels / s.groups),
        image_size(s.pixels * s.channels),
        reciprocal_size(1.0 / static_cast<double>(size)) {}
};

// A block's image and group.
struct GroupPlace {
  const GroupGeometry& g;
  int64_t first_channel, first;  // of the group's values: the first one

  __device__ GroupPlace(const GroupGeometry& geometry, uint32_t block) : g(geometry) {
    const auto [image, group] = g.groups.Split(block);
    first_channel = group * g.group_channels_size;
    first = image * g.image_size + first_channel;
  }

  // Value i of the group: its channel, counted in the group, and its place in the tensor.
  struct Element {
    int64_t channel, place;
  };
  __device__ Element At(int64_t i) const {
    const auto [pixel, channel] = g.group_channels.Split(static_cast<uint32_t>(i));
    return {channel, first + pixel * g.channels + channel};
  }
};

// The sum over the block's threads, for each of them, by a tree. `buffer` is shared memory of kBlockThreads.
__device__ double SumOfBlock(double value, double* buffer) {
  const int thread = static_cast<int>(threadIdx.x);
  buffer[thread] = value;
  for (int stride = kBlockThreads / 2; stride >= 1; stride /= 2) {
    __syncthreads();
    if (thread < stride) buffer[thread] += buffer[thread + stride];
  }
  __syncthreads();
  const double sum = buffer[0];
  __syncthreads();  // the buffer may be written again
  return sum;
}

template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    ForwardKernel(GroupGeometry g, float epsilon, GroupNormMemory memory, const T* x, const float* gamma,
                  const float* beta, T* y) {
  __shared__ double buffer[kBlockThreads];
  const GroupPlace group(g, blockIdx.x);
  double sum = 0, squares = 0;
  for (int64_t i = threadIdx.x; i < g.size; i += kBlockThreads) sum += double{FloatOf(x[group.At(i).place])};
  const float mean = static_cast<float>(SumOfBlock(sum, buffer) * g.reciprocal_size);
  for (int64_t i = threadIdx.x; i < g.size; i += kBlockThreads) {
    // The squares need the mean, which costs another pass. E[x^2] - E[x]^2 would cancel where the mean is large.
    const double distance = double{FloatOf(x[group.At(i).place])} - double{mean};
    squares += distance * distance;
  }
  const double variance = SumOfBlock(squares, buffer) * g.reciprocal_size;
  // In float: a root in double is a call, which spills registers, and no digit of the result needs it.
  const float inverse = 1.0f / sqrtf(static_cast<float>(variance + double{epsilon}));
  if (threadIdx.x == 0) {
    memory.mean[blockIdx.x] = mean;
    memory.inverse_deviation[blockIdx.x] = inverse;
  }
  for (int64_t i = threadIdx.x; i < g.size; i += kBlockThreads) {
    const auto [channel, place] = group.At(i);
    const int64_t c = group.first_channel + channel;
    y[place] = Rounded<T>((FloatOf(x[place]) - mean) * (gamma[c] * inverse) + beta[c]);
  }
}

template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    InputGradientKernel(GroupGeometry g, GroupNormMemory memory, const T* x, const float* gamma, const T* dy, T* dx) {
  __shared__ double buffer[kBlockThreads];
  const GroupPlace group(g, blockIdx.x);
  const float mean = memory.mean[blockIdx.x], inverse = memory.inverse_deviation[blockIdx.x];
  double sum = 0, product = 0;
  for (int64_t i = threadIdx.x; i < g.size; i += kBlockThreads) {
    const auto [channel, place] = group.At(i);
    const double gradient = double{gamma[group.first_channel + channel]} * double{FloatOf(dy[place])};
    sum += gradient;
    product += gradient * double{FloatOf(x[place]) - mean};
  }
  const double factor = double{inverse};
  // Let h = (x - mean) * inverse and d = gamma * dy. Then dx = inverse * (d - mean(d) - h * mean(d * h)). `product` is
  // the sum of d * (x - mean), so `slope` has the factor three times.
  const float shift = static_cast<float>(SumOfBlock(sum, buffer) * factor * g.reciprocal_size);
  const float slope = static_cast<float>(SumOfBlock(product, buffer) * factor * factor * factor * g.reciprocal_size);
  for (int64_t i = threadIdx.x; i < g.size; i += kBlockThreads) {
    const auto [channel, place] = group.At(i);
    const float scale = gamma[group.first_channel + channel] * inverse;
    dx[place] = Rounded<T>(FloatOf(dy[place]) * scale - shift - (FloatOf(x[place]) - mean) * slope);
  }
}

// A warp reads 32 neighbouring channels of a row, which is one access of 128 bytes.
constexpr int kChannelLanes = 32;
constexpr int kRowLanes = kBlockThreads / kChannelLanes;
// kTilesMax bounds the partial sums, and the loop of AddTilesKernel. kTileRowsMin gives each thread 16 rows or more,
// except in the last tile.
constexpr int64_t kTilesMax = 64;
constexpr int64_t kTileRowsMin = 16 * kRowLanes;

// How the rows, the pixels of all images, are cut into tiles: by the shape alone, because tiles decide the order of
// sums.
struct RowTiles {
  int64_t rows, tile_rows, tiles, lanes;
  explicit RowTiles(const GroupNormShape& s)
      : rows(s.images * s.pixels),
        tile_rows(std::max(kTileRowsMin, CeilDivide(rows, kTilesMax))),
        tiles(CeilDivide(rows, tile_rows)),
        lanes(CeilDivide(s.channels, kChannelLanes)) {}
};

// partial = for each tile the sums of dy, then of dy * (x - mean) / deviation, of each channel.
template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    WeightGradientKernel(GroupNormShape s, RowTiles t, GroupNormMemory memory, const T* x, const T* dy) {
  __shared__ double sums[kBlockThreads];
  __shared__ double products[kBlockThreads];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t block = blockIdx.x, tile = block / t.lanes;
  const int64_t channel = block % t.lanes * kChannelLanes + thread % kChannelLanes;
  const int64_t end = (tile + 1) * t.tile_rows < t.rows ? (tile + 1) * t.tile_rows : t.rows;
  double sum = 0, product = 0;
  // Threads without a channel must not return: all threads meet at the barriers below.
  if (channel < s.channels) {
    const int64_t group = channel / (s.channels / s.groups);
    for (int64_t row = tile * t.tile_rows + thread / kChannelLanes; row < end; row += kRowLanes) {
      // Rows of one tile may belong to several images, each with statistics of its own.
      const int64_t statistics = row / s.pixels * s.groups + group;
      const float gradient = FloatOf(dy[row * s.channels + channel]);
      sum += double{gradient};
      product += double{gradient} * double{FloatOf(x[row * s.channels + channel]) - memory.mean[statistics]} *
                 double{memory.inverse_deviation[statistics]};
    }
  }
  sums[thread] = sum;
  products[thread] = product;
  for (int stride = kBlockThreads / 2; stride >= kChannelLanes; stride /= 2) {
    __syncthreads();
    if (thread < stride) {
      sums[thread] += sums[thread + stride];
      products[thread] += products[thread + stride];
    }
  }
  if (thread < kChannelLanes && channel < s.channels) {
    // A tile's sums are rounded to float once. They are added in double by AddTilesKernel.
    memory.partial[2 * tile * s.channels + channel] = static_cast<float>(sums[thread]);
    memory.partial[(2 * tile + 1) * s.channels + channel] = static_cast<float>(products[thread]);
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    AddTilesKernel(RowTiles t, int64_t channels, const float* partial, float* dgamma, float* dbeta) {
  const int64_t channel = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  if (channel >= channels) return;
  double sum = 0, product = 0;
  for (int64_t tile = 0; tile < t.tiles; ++tile) {
    sum += double{partial[2 * tile * channels + channel]};
    product += double{partial[(2 * tile + 1) * channels + channel]};
  }
  dbeta[channel] = static_cast<float>(sum);
  dgamma[channel] = static_cast<float>(product);
}

template <typename T>
cudaError_t Backward(cudaStream_t stream, const GroupNormShape& s, const GroupNormMemory& memory,
                     const GroupNormGradients& g) {
  const T* const x = g.x.As<T>();
  const T* const dy = g.dy.As<T>();
  if (!g.dx.is_null()) {
    const cudaError_t error = Launch(stream, {.blocks = s.images * s.groups}, InputGradientKernel<T>, GroupGeometry(s),
                                     memory, x, g.gamma, dy, g.dx.As<T>());
    if (error != cudaSuccess) return error;
  }
  // Gradients of gamma and beta are sums over all images, so their blocks walk rows and not groups.
  const RowTiles tiles(s);
  const cudaError_t error =
      Launch(stream, {.blocks = tiles.tiles * tiles.lanes}, WeightGradientKernel<T>, s, tiles, memory, x, dy);
  if (error != cudaSuccess) return error;
  return Launch(stream, {.blocks = CeilDivide(s.channels, kBlockThreads)}, AddTilesKernel, tiles, s.channels,
                static_cast<const float*>(memory.partial), g.dgamma, g.dbeta);
}

}  // namespace

int64_t GroupNormPartialFloats(const GroupNormShape& s) { return 2 * RowTiles(s).tiles * s.channels; }

cudaError_t GroupNormForward(cudaStream_t stream, const GroupNormShape& s, const GroupNormMemory& memory,
                             ConstElements x, const float* gamma, const float* beta, Elements y) {
  return WithElement(
      [&]<typename T>() {
        return Launch(stream, {.blocks = s.images * s.groups}, ForwardKernel<T>, GroupGeometry(s), s.epsilon, memory,
                      x.As<T>(), gamma, beta, y.As<T>());
      },
      x.element(), y);
}

cudaError_t GroupNormBackward(cudaStream_t stream, const GroupNormShape& s, const GroupNormMemory& memory,
                              const GroupNormGradients& g) {
  return WithElement([&]<typename T>() { return Backward<T>(stream, s, memory, g); }, g.x.element(), g.dy, g.dx);
}

}  // namespace starring::cuda
