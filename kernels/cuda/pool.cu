#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/pool.h"

namespace starring::cuda {
namespace {

struct Windows {
  uint32_t count;                   // threads
  Divisor channels, width, height;  // of what the threads count: outputs in forward, inputs in backward
  Divisor stride_height, stride_width;
  int32_t channel_count, in_height, in_width, out_height, out_width;
  int32_t kernel_height, kernel_width, stride_h, stride_w, padding_h, padding_w;
};

struct Place {
  int64_t image;
  int32_t row, column;
  uint32_t channel;
  __device__ Place(const Windows& g, uint32_t i) {
    const auto [pixel, c] = g.channels.Split(i);
    const auto [line, w] = g.width.Split(pixel);
    const auto [n, h] = g.height.Split(line);
    image = n;
    row = static_cast<int32_t>(h);
    column = static_cast<int32_t>(w);
    channel = c;
  }
};

template <typename Index>
__global__ void __launch_bounds__(kBlockThreads)
    MaxPoolForwardKernel(Windows g, const float* x, float* y, Index* winners) {
  const uint32_t i = blockIdx.x * kBlockThreads + threadIdx.x;
  if (i >= g.count) return;
  const Place at(g, i);
  const int32_t top = at.row * g.stride_h - g.padding_h, left = at.column * g.stride_w - g.padding_w;
  float best = 0;
  int32_t winner = -1;
  for (int32_t r = 0; r < g.kernel_height; ++r) {
    const int32_t h = top + r;
    if (h < 0 || h >= g.in_height) continue;
    for (int32_t c = 0; c < g.kernel_width; ++c) {
      const int32_t w = left + c;
      if (w < 0 || w >= g.in_width) continue;
      const float v = x[((at.image * g.in_height + h) * g.in_width + w) * g.channel_count + at.channel];
      if (winner < 0 || v > best || v != v) {
        best = v;
        winner = r * g.kernel_width + c;
      }
    }
  }
  y[i] = best;
  winners[i] = static_cast<Index>(winner);
}

template <typename Index>
__global__ void __launch_bounds__(kBlockThreads)
    MaxPoolBackwardKernel(Windows g, const float* dy, const Index* winners, float* dx) {
  const uint32_t i = blockIdx.x * kBlockThreads + threadIdx.x;
  if (i >= g.count) return;
  const Place at(g, i);
  const int32_t row = at.row + g.padding_h, column = at.column + g.padding_w;
  // The windows that see this element: the first ends behind it, the last begins at it or before.
  const int32_t first_row =
      row < g.kernel_height ? 0 : g.stride_height.Quotient(static_cast<uint32_t>(row - g.kernel_height)) + 1;
  const int32_t first_column =
      column < g.kernel_width ? 0 : g.stride_width.Quotient(static_cast<uint32_t>(column - g.kernel_width)) + 1;
  float sum = 0;
  for (int32_t r = first_row; r < g.out_height && r * g.stride_h <= row; ++r) {
    for (int32_t c = first_column; c < g.out_width && c * g.stride_w <= column; ++c) {
      const int64_t out = ((at.image * g.out_height + r) * g.out_width + c) * g.channel_count + at.channel;
      const int32_t place = (row - r * g.stride_h) * g.kernel_width + (column - c * g.stride_w);
      if (static_cast<int32_t>(winners[out]) == place) sum += dy[out];
    }
  }
  dx[i] = sum;
}

enum class Pass { kForward, kBackward };

Windows WindowsOf(const PatchShape& s, Pass pass) {
  const int64_t height = pass == Pass::kForward ? s.out_height : s.in_height;
  const int64_t width = pass == Pass::kForward ? s.out_width : s.in_width;
  return {.count = static_cast<uint32_t>(s.images * height * width * s.channels),
          .channels = Divisor(s.channels),
          .width = Divisor(width),
          .height = Divisor(height),
          .stride_height = Divisor(s.stride_height),
          .stride_width = Divisor(s.stride_width),
          .channel_count = static_cast<int32_t>(s.channels),
          .in_height = static_cast<int32_t>(s.in_height),
          .in_width = static_cast<int32_t>(s.in_width),
          .out_height = static_cast<int32_t>(s.out_height),
          .out_width = static_cast<int32_t>(s.out_width),
          .kernel_height = static_cast<int32_t>(s.kernel_height),
          .kernel_width = static_cast<int32_t>(s.kernel_width),
          .stride_h = static_cast<int32_t>(s.stride_height),
          .stride_w = static_cast<int32_t>(s.stride_width),
          .padding_h = static_cast<int32_t>(s.padding_height),
          .padding_w = static_cast<int32_t>(s.padding_width)};
}

constexpr int64_t kBytePlaces = 256;

template <typename Index>
cudaError_t Forward(cudaStream_t stream, const PatchShape& window, const float* x, float* y, void* winners) {
  const Windows g = WindowsOf(window, Pass::kForward);
  return Launch(stream, {.blocks = CeilDivide(g.count, kBlockThreads)}, MaxPoolForwardKernel<Index>, g, x, y,
                static_cast<Index*>(winners));
}

template <typename Index>
cudaError_t Backward(cudaStream_t stream, const PatchShape& window, const float* dy, const void* winners, float* dx) {
  const Windows g = WindowsOf(window, Pass::kBackward);
  return Launch(stream, {.blocks = CeilDivide(g.count, kBlockThreads)}, MaxPoolBackwardKernel<Index>, g, dy,
                static_cast<const Index*>(winners), dx);
}

__global__ void __launch_bounds__(kBlockThreads)
    AveragePoolForwardKernel(uint32_t count, Divisor channels, int64_t channel_count, int64_t pixels, const float* x,
                             float* y) {
  const uint32_t i = blockIdx.x * kBlockThreads + threadIdx.x;
  if (i >= count) return;
  const auto [image, channel] = channels.Split(i);
  const float* const from = x + image * pixels * channel_count + channel;
  float sum = 0;
  for (int64_t p = 0; p < pixels; ++p) sum += from[p * channel_count];
  y[i] = sum / static_cast<float>(pixels);
}

__global__ void __launch_bounds__(kBlockThreads)
    AveragePoolBackwardKernel(uint32_t count, Divisor channels, Divisor image_size, int64_t channel_count, float pixels,
                              const float* dy, float* dx) {
  const uint32_t i = blockIdx.x * kBlockThreads + threadIdx.x;
  if (i >= count) return;
  const uint32_t channel = channels.Split(i).remainder;
  dx[i] = dy[image_size.Quotient(i) * channel_count + channel] / pixels;
}

}  // namespace

int64_t WinnerBytes(const PatchShape& window) {
  const int64_t bytes = window.kernel_height * window.kernel_width <= kBytePlaces ? 1 : 4;
  return bytes * window.rows() * window.channels;
}

cudaError_t MaxPoolForward(cudaStream_t stream, const PatchShape& window, const float* x, float* y, void* winners) {
  const bool bytes = window.kernel_height * window.kernel_width <= kBytePlaces;
  return bytes ? Forward<uint8_t>(stream, window, x, y, winners) : Forward<int32_t>(stream, window, x, y, winners);
}

cudaError_t MaxPoolBackward(cudaStream_t stream, const PatchShape& window, const float* dy, const void* winners,
                            float* dx) {
  const bool bytes = window.kernel_height * window.kernel_width <= kBytePlaces;
  return bytes ? Backward<uint8_t>(stream, window, dy, winners, dx)
               : Backward<int32_t>(stream, window, dy, winners, dx);
}

cudaError_t AveragePoolForward(cudaStream_t stream, const AveragePoolShape& s, const float* x, float* y) {
  const int64_t count = s.images * s.channels;
  return Launch(stream, {.blocks = CeilDivide(count, kBlockThreads)}, AveragePoolForwardKernel,
                static_cast<uint32_t>(count), Divisor(s.channels), s.channels, s.pixels, x, y);
}

cudaError_t AveragePoolBackward(cudaStream_t stream, const AveragePoolShape& s, const float* dy, float* dx) {
  const int64_t count = s.images * s.pixels * s.channels;
  return Launch(stream, {.blocks = CeilDivide(count, kBlockThreads)}, AveragePoolBackwardKernel,
                static_cast<uint32_t>(count), Divisor(s.channels), Divisor(s.pixels * s.channels), s.channels,
                static_cast<float>(s.pixels), dy, dx);
}

}  // namespace starring::cuda
