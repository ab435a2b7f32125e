#include <algorithm>

#include "kernels/cuda/bfloat16.h"
#include "kernels/cuda/channel_windows.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/patch_geometry.h"

namespace starring::cuda {
namespace {

// One output of kWidth neighbouring channels.
template <bool kWeighted, typename T>
struct ForwardBody {
  PatchGeometry g;
  const T* x;
  const float* weight;
  const float* bias;
  T* y;

  template <int kWidth>
  __device__ void Run(int64_t i) const {
    const auto [output, channel] = g.channels.Split(static_cast<uint32_t>(i));
    const ImagePlace window = WindowOf(g, output);
    const int32_t taps = g.kernel_height_size * g.kernel_width_size;
    Pack<float, kWidth> sum = {};
    if (kWeighted && bias != nullptr) sum = LoadPack<kWidth>(bias + channel);
    for (int32_t r = 0; r < g.kernel_height_size; ++r) {
      for (int32_t c = 0; c < g.kernel_width_size; ++c) {
        const int32_t h = window.h + r, w = window.w + c;
        // Padding is 0, so a tap there adds nothing. An average counts the tap all the same.
        if (!IsInside(g, h, w)) continue;
        const auto v = LoadFloats<kWidth>(x + InputIndex(g, window.image, h, w) + channel);
        const int32_t tap = r * g.kernel_width_size + c;
        for (int k = 0; k < kWidth; ++k) {
          sum.v[k] += kWeighted ? v.v[k] * weight[int64_t{channel + k} * taps + tap] : v.v[k];
        }
      }
    }
    // A division, as on the CPU: the product with the reciprocal would round twice.
    for (float& v : sum.v) v = kWeighted ? v : v / static_cast<float>(taps);
    StoreFloats(sum, y + i);
  }
};

// One element of dx, of kWidth neighbouring channels.
template <bool kWeighted, typename T>
struct BackwardBody {
  PatchGeometry g;
  const T* dy;
  const float* weight;
  T* dx;

  template <int kWidth>
  __device__ void Run(int64_t i) const {
    const auto [pixel, channel] = g.channels.Split(static_cast<uint32_t>(i));
    const PixelsOutputs outputs = OutputsOfPixel(g, pixel);
    const int32_t taps = g.kernel_height_size * g.kernel_width_size;
    Pack<float, kWidth> sum = {};
    for (int32_t r = outputs.rows.begin; r < outputs.rows.end; ++r) {
      for (int32_t c = outputs.columns.begin; c < outputs.columns.end; ++c) {
        // The loops meet the outputs in row-major order, which is that of the CPU, so the sums have equal bits.
        const auto [output, tap] = OutputAt(g, outputs.pixel, r, c);
        const auto v = LoadFloats<kWidth>(dy + output * g.channels_size + channel);
        for (int k = 0; k < kWidth; ++k) {
          sum.v[k] += kWeighted ? v.v[k] * weight[int64_t{channel + k} * taps + tap] : v.v[k];
        }
      }
    }
    for (float& v : sum.v) v = kWeighted ? v : v / static_cast<float>(taps);
    StoreFloats(sum, dx + i);
  }
};

// A warp reads 32 neighbouring channels of a pixel, which is one access of 128 bytes.
constexpr int kChannelLanes = 32;
constexpr int kRowLanes = kBlockThreads / kChannelLanes;
// kTilesMax bounds the partial sums, and the loop of AddTilesKernel. kTileRowsMin gives each thread 16 rows or more,
// except in the last tile.
constexpr int64_t kTilesMax = 64;
constexpr int64_t kTileRowsMin = 16 * kRowLanes;

// How the outputs of all images are cut into tiles: by the shape alone, because tiles decide the order of sums.
struct OutputTiles {
  int64_t tile_rows, tiles, groups, taps;
  explicit OutputTiles(const PatchShape& s)
      : tile_rows(std::max(kTileRowsMin, CeilDivide(s.rows(), kTilesMax))),
        tiles(CeilDivide(s.rows(), tile_rows)),
        groups(CeilDivide(s.channels, kChannelLanes)),
        taps(s.kernel_height * s.kernel_width) {}
};

// A block has one tap, group of channels and tile.
template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    WeightGradientKernel(PatchGeometry g, OutputTiles t, int64_t rows, const T* x, const T* dy, float* partial) {
  __shared__ float buffer[kBlockThreads];
  const int64_t block = blockIdx.x;
  const int64_t group = block % t.groups, tap = block / t.groups % t.taps, tile = block / t.groups / t.taps;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t channel = group * kChannelLanes + thread % kChannelLanes;
  const auto [r, c] = g.kernel_width.Split(static_cast<uint32_t>(tap));
  const int64_t end = (tile + 1) * t.tile_rows < rows ? (tile + 1) * t.tile_rows : rows;
  float sum = 0;
  // Threads of the last group without a channel must not return: all threads meet at the barriers below.
  if (channel < g.channels_size) {
    for (int64_t row = tile * t.tile_rows + thread / kChannelLanes; row < end; row += kRowLanes) {
      const ImagePlace window = WindowOf(g, static_cast<uint32_t>(row));
      const int32_t h = window.h + static_cast<int32_t>(r), w = window.w + static_cast<int32_t>(c);
      if (!IsInside(g, h, w)) continue;
      sum += FloatOf(x[InputIndex(g, window.image, h, w) + channel]) * FloatOf(dy[row * g.channels_size + channel]);
    }
  }
  buffer[thread] = sum;
  // The tree ends at one row of lanes: thread t and thread t + stride have the same channel.
  for (int stride = kBlockThreads / 2; stride >= kChannelLanes; stride /= 2) {
    __syncthreads();
    if (thread < stride) buffer[thread] += buffer[thread + stride];
  }
  if (thread < kChannelLanes && channel < g.channels_size) {
    partial[(tile * t.taps + tap) * g.channels_size + channel] = buffer[thread];
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    AddTilesKernel(OutputTiles t, int64_t channels, const float* partial, float* dweight) {
  const int64_t i = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  if (i >= t.taps * channels) return;
  float sum = 0;
  // One thread adds all tiles in order, without atomics, so that the bits do not depend on the order of blocks.
  for (int64_t tile = 0; tile < t.tiles; ++tile) sum += partial[tile * t.taps * channels + i];
  // Partial sums are (tile, tap, channel), and weights (channel, tap), as PyTorch has them.
  dweight[i % channels * t.taps + i / channels] = sum;
}

}  // namespace

cudaError_t ChannelWindowsForward(cudaStream_t stream, const PatchShape& s, ConstElements x, const float* weight,
                                  const float* bias, Elements y) {
  const int64_t count = s.rows() * s.channels;
  return WithElement(
      [&]<typename T>() {
        constexpr int kPack = kPackOf<T>;
        const T* const from = x.As<T>();
        T* const to = y.As<T>();
        const Alignment alignment = AlignmentOfChannels<kPack>(s.channels, from, bias, to);
        if (weight == nullptr) {
          return ForEach<kPack>(stream, count, alignment,
                                ForwardBody<false, T>{PatchGeometry(s), from, nullptr, nullptr, to});
        }
        return ForEach<kPack>(stream, count, alignment, ForwardBody<true, T>{PatchGeometry(s), from, weight, bias, to});
      },
      x.element(), y);
}

cudaError_t ChannelWindowsBackward(cudaStream_t stream, const PatchShape& s, ConstElements dy, const float* weight,
                                   Elements dx) {
  const int64_t count = s.images * s.in_height * s.in_width * s.channels;
  return WithElement(
      [&]<typename T>() {
        constexpr int kPack = kPackOf<T>;
        const T* const from = dy.As<T>();
        T* const to = dx.As<T>();
        const Alignment alignment = AlignmentOfChannels<kPack>(s.channels, from, to);
        if (weight == nullptr) {
          return ForEach<kPack>(stream, count, alignment, BackwardBody<false, T>{PatchGeometry(s), from, nullptr, to});
        }
        return ForEach<kPack>(stream, count, alignment, BackwardBody<true, T>{PatchGeometry(s), from, weight, to});
      },
      dy.element(), dx);
}

int64_t DepthwisePartialFloats(const PatchShape& s) {
  const OutputTiles tiles(s);
  return tiles.tiles * tiles.taps * s.channels;
}

cudaError_t DepthwiseWeightGradient(cudaStream_t stream, const PatchShape& s, ConstElements x, ConstElements dy,
                                    float* partial, float* dweight) {
  const OutputTiles tiles(s);
  const LaunchShape all = {.blocks = tiles.groups * tiles.taps * tiles.tiles};
  const cudaError_t error = WithElement(
      [&]<typename T>() {
        return Launch(stream, all, WeightGradientKernel<T>, PatchGeometry(s), tiles, s.rows(), x.As<T>(), dy.As<T>(),
                      partial);
      },
      x.element(), dy);
  if (error != cudaSuccess) return error;
  return Launch(stream, {.blocks = CeilDivide(tiles.taps * s.channels, kBlockThreads)}, AddTilesKernel, tiles,
                s.channels, static_cast<const float*>(partial), dweight);
}

}  // namespace starring::cuda
