#include "kernels/cuda/bfloat16.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/patch_geometry.h"
#include "kernels/cuda/pool.h"

// Every body treats kWidth neighbouring channels of one element of its output: threads that follow each other then read
// and write neighbouring memory, and only a thread's first channel needs its place in the image worked out.
namespace starring::cuda {
namespace {

// One output: walks over its window.
template <typename T, typename Index>
struct MaxPoolForwardBody {
  PatchGeometry g;
  const T* x;
  T* y;
  Index* winners;

  template <int kWidth>
  __device__ void Run(int64_t i) const {
    const auto [output, channel] = g.channels.Split(static_cast<uint32_t>(i));
    const ImagePlace window = WindowOf(g, output);
    Pack<float, kWidth> best = {};
    Pack<Index, kWidth> winner = {};
    // The first place on the image wins whatever it holds. Beginning with -infinity instead would leave a window of
    // -infinities without a winner, and its gradient would go to place 0, which may be padding.
    bool first = true;
    for (int32_t r = 0; r < g.kernel_height_size; ++r) {
      for (int32_t c = 0; c < g.kernel_width_size; ++c) {
        const int32_t h = window.h + r, w = window.w + c;
        if (!IsInside(g, h, w)) continue;
        const auto v = LoadFloats<kWidth>(x + InputIndex(g, window.image, h, w) + channel);
        for (int k = 0; k < kWidth; ++k) {
          // Passes on unless it is greater, so that of equal values the first stays; a NaN, unequal to itself, wins.
          if (!first && !(v.v[k] > best.v[k]) && v.v[k] == v.v[k]) continue;
          best.v[k] = v.v[k];
          winner.v[k] = static_cast<Index>(r * g.kernel_width_size + c);
        }
        first = false;
      }
    }
    StoreFloats(best, y + i);
    StorePack(winner, winners + i);
  }
};

// One element of dx: gathers from the windows that see it. Scattering dy to the winners instead would need atomics
// where windows overlap, whose order, and so whose bits, differ from run to run; and dx would have to be zeroed first.
template <typename T, typename Index>
struct MaxPoolBackwardBody {
  PatchGeometry g;
  const T* dy;
  const Index* winners;
  T* dx;

  template <int kWidth>
  __device__ void Run(int64_t i) const {
    const auto [pixel, channel] = g.channels.Split(static_cast<uint32_t>(i));
    const PixelsOutputs outputs = OutputsOfPixel(g, pixel);
    Pack<float, kWidth> sum = {};
    for (int32_t r = outputs.rows.begin; r < outputs.rows.end; ++r) {
#pragma unroll 1  // mostly one window sees a pixel: more loads in flight would only cost registers
      for (int32_t c = outputs.columns.begin; c < outputs.columns.end; ++c) {
        const auto [output, place] = OutputAt(g, outputs.pixel, r, c);
        const int64_t out = output * g.channels_size + channel;
        const auto winner = LoadPack<kWidth>(winners + out);
        const auto gradient = LoadFloats<kWidth>(dy + out);
        for (int k = 0; k < kWidth; ++k) {
          if (static_cast<int32_t>(winner.v[k]) == place) sum.v[k] += gradient.v[k];
        }
      }
    }
    StoreFloats(sum, dx + i);
  }
};

constexpr int64_t kBytePlaces = 256;  // places that a byte can number

template <typename T, typename Index>
cudaError_t Forward(cudaStream_t stream, const PatchShape& s, ConstElements x, Elements y, void* winners) {
  const MaxPoolForwardBody<T, Index> body = {PatchGeometry(s), x.As<T>(), y.As<T>(), static_cast<Index*>(winners)};
  // Packs of four for both types: with eight maxima and eight winners nvcc 13.0 spills registers.
  return ForEach(stream, s.rows() * s.channels, AlignmentOfChannels(s.channels, body.x, body.y, winners), body);
}

template <typename T, typename Index>
cudaError_t Backward(cudaStream_t stream, const PatchShape& s, ConstElements dy, const void* winners, Elements dx) {
  const MaxPoolBackwardBody<T, Index> body = {PatchGeometry(s), dy.As<T>(), static_cast<const Index*>(winners),
                                              dx.As<T>()};
  return ForEach<kPackOf<T>>(stream, s.images * s.in_height * s.in_width * s.channels,
                             AlignmentOfChannels<kPackOf<T>>(s.channels, body.dy, winners, body.dx), body);
}

// A warp sums kWarpPacks packs of y; kPixelLanes of its threads share the pixels of each pack. With one thread for each
// pack, a batch of 64 images with 64 channels would be 1,024 threads, which leave most of a GPU idle.
constexpr int kWarpThreads = 32;
constexpr int kWarpPacks = 8;
constexpr int kPixelLanes = kWarpThreads / kWarpPacks;
constexpr int kBlockPacks = kBlockThreads / kPixelLanes;

template <typename T, int kWidth>
__global__ void __launch_bounds__(kBlockThreads)
    AveragePoolForwardKernel(int64_t packs, Divisor channel_packs, int64_t channels, int64_t pixels, const T* x, T* y) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads, warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const int64_t pack = int64_t{blockIdx.x} * kBlockPacks + warp * kWarpPacks + lane % kWarpPacks;
  const int pixel_lane = lane / kWarpPacks;
  // Threads beyond the last pack sum pack 0 and store nothing: all threads of a warp must take part in the shuffles.
  const auto [image, in_image] = channel_packs.Split(static_cast<uint32_t>(pack < packs ? pack : 0));
  const T* const from = x + image * pixels * channels + in_image * kWidth;
  Pack<float, kWidth> sum = {};
#pragma unroll 4
  for (int64_t p = pixel_lane; p < pixels; p += kPixelLanes) sum += LoadFloats<kWidth>(from + p * channels);
  // Threads of one pack are kWarpPacks lanes apart. A tree by shuffles: the order of the sum is fixed.
  for (int distance = kWarpPacks; distance < kWarpThreads; distance *= 2) {
    for (float& v : sum.v) v += __shfl_xor_sync(0xffffffffu, v, distance);
  }
  // After the shuffles all lanes of a pack have the sum; one stores it.
  if (pack >= packs || pixel_lane != 0) return;
  for (float& v : sum.v) v /= static_cast<float>(pixels);
  StoreFloats(sum, y + pack * kWidth);
}

template <typename T, int kWidth>
cudaError_t AverageForward(cudaStream_t stream, const AveragePoolShape& s, const T* x, T* y) {
  const int64_t packs = s.images * s.channels / kWidth;
  return Launch(stream, {.blocks = CeilDivide(packs, kBlockPacks)}, AveragePoolForwardKernel<T, kWidth>, packs,
                Divisor(s.channels / kWidth), s.channels, s.pixels, x, y);
}

// Every pixel of an image gets the same gradient: dy is small and comes from the cache.
template <typename T>
struct AveragePoolBackwardBody {
  Divisor channels, image_floats;
  int64_t channels_size;
  float pixels;
  const T* dy;
  T* dx;

  template <int kWidth>
  __device__ void Run(int64_t i) const {
    const auto element = static_cast<uint32_t>(i);
    const uint32_t channel = channels.Split(element).remainder;
    auto v = LoadFloats<kWidth>(dy + image_floats.Quotient(element) * channels_size + channel);
    // A division, as on the CPU: the product with the reciprocal would round twice.
    for (float& gradient : v.v) gradient /= pixels;
    StoreFloats(v, dx + i);
  }
};

}  // namespace

int64_t WinnerBytes(const PatchShape& window) {
  // A byte is used where it is enough: forward then writes 5 bytes for an output instead of 8, and backward reads as
  // many.
  const int64_t bytes = window.kernel_height * window.kernel_width <= kBytePlaces ? 1 : 4;
  return bytes * window.rows() * window.channels;
}

cudaError_t MaxPoolForward(cudaStream_t stream, const PatchShape& window, ConstElements x, Elements y, void* winners) {
  const bool bytes = window.kernel_height * window.kernel_width <= kBytePlaces;
  return WithElement(
      [&]<typename T>() {
        return bytes ? Forward<T, uint8_t>(stream, window, x, y, winners)
                     : Forward<T, int32_t>(stream, window, x, y, winners);
      },
      x.element(), y);
}

cudaError_t MaxPoolBackward(cudaStream_t stream, const PatchShape& window, ConstElements dy, const void* winners,
                            Elements dx) {
  const bool bytes = window.kernel_height * window.kernel_width <= kBytePlaces;
  return WithElement(
      [&]<typename T>() {
        return bytes ? Backward<T, uint8_t>(stream, window, dy, winners, dx)
                     : Backward<T, int32_t>(stream, window, dy, winners, dx);
      },
      dy.element(), dx);
}

cudaError_t AveragePoolForward(cudaStream_t stream, const AveragePoolShape& s, ConstElements x, Elements y) {
  return WithElement(
      [&]<typename T>() {
        const T* const from = x.As<T>();
        T* const to = y.As<T>();
        const bool by_packs = AlignmentOfChannels<kPackOf<T>>(s.channels, from, to) == Alignment::kPacks;
        return by_packs ? AverageForward<T, kPackOf<T>>(stream, s, from, to)
                        : AverageForward<T, 1>(stream, s, from, to);
      },
      x.element(), y);
}

cudaError_t AveragePoolBackward(cudaStream_t stream, const AveragePoolShape& s, ConstElements dy, Elements dx) {
  return WithElement(
      [&]<typename T>() {
        const AveragePoolBackwardBody<T> body = {Divisor(s.channels), Divisor(s.pixels * s.channels),
                                                 s.channels,          static_cast<float>(s.pixels),
                                                 dy.As<T>(),          dx.As<T>()};
        return ForEach<kPackOf<T>>(stream, s.images * s.pixels * s.channels,
                                   AlignmentOfChannels<kPackOf<T>>(s.channels, body.dy, body.dx), body);
      },
      dy.element(), dx);
}

}  // namespace starring::cuda
