#include "kernels/cuda/im2col.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.h"

namespace starring::cuda {
namespace {

// Channels are counted in packs of the kernel's width.
struct Gather {
  uint32_t count;  // packs to write
  Divisor patch, channels, kernel_width, out_width, out_height, in_width, in_height, stride_width, stride_height;
  int32_t channel_packs, patch_packs;
  int32_t in_height_size, in_width_size, out_height_size, out_width_size;
  int32_t kernel_height_size, kernel_width_size;
  int32_t stride_h, stride_w, padding_h, padding_w;
};

template <int kWidth>
__global__ void __launch_bounds__(kBlockThreads) Im2colKernel(Gather g, const float* x, float* columns) {
  const uint32_t i = blockIdx.x * kBlockThreads + threadIdx.x;
  if (i >= g.count) return;
  const auto [row, in_patch] = g.patch.Split(i);
  const auto [place, channel] = g.channels.Split(in_patch);
  const auto [kernel_row, kernel_column] = g.kernel_width.Split(place);
  const auto [out_line, out_column] = g.out_width.Split(row);
  const auto [image, out_row] = g.out_height.Split(out_line);
  const int32_t h = static_cast<int32_t>(out_row) * g.stride_h - g.padding_h + static_cast<int32_t>(kernel_row);
  const int32_t w = static_cast<int32_t>(out_column) * g.stride_w - g.padding_w + static_cast<int32_t>(kernel_column);
  Pack<float, kWidth> v = {};
  if (h >= 0 && h < g.in_height_size && w >= 0 && w < g.in_width_size) {
    const int64_t pixel = (int64_t{image} * g.in_height_size + h) * g.in_width_size + w;
    v = LoadPack<kWidth>(x + (pixel * g.channel_packs + channel) * kWidth);
  }
  StorePack(v, columns + int64_t{i} * kWidth);
}

// The outputs whose windows see input place `at` (padding counted): [begin, end).
struct Outputs {
  int32_t begin, end;
};
__device__ inline Outputs OutputsThatSee(int32_t at, int32_t kernel, const Divisor& stride, int32_t out) {
  const int32_t last = static_cast<int32_t>(stride.Quotient(static_cast<uint32_t>(at)));
  // The first window that does not end before `at`: ceil((at - kernel + 1) / stride).
  const int32_t begin = at < kernel ? 0 : static_cast<int32_t>(stride.Quotient(static_cast<uint32_t>(at - kernel))) + 1;
  return {begin, last + 1 < out ? last + 1 : out};
}

template <int kWidth>
__global__ void __launch_bounds__(kBlockThreads) Col2imKernel(Gather g, const float* columns, float* dx) {
  const uint32_t i = blockIdx.x * kBlockThreads + threadIdx.x;
  if (i >= g.count) return;
  const auto [pixel, channel] = g.channels.Split(i);
  const auto [line, w] = g.in_width.Split(pixel);
  const auto [image, h] = g.in_height.Split(line);
  const int32_t row = static_cast<int32_t>(h) + g.padding_h, column = static_cast<int32_t>(w) + g.padding_w;
  const Outputs rows = OutputsThatSee(row, g.kernel_height_size, g.stride_height, g.out_height_size);
  const Outputs all_columns = OutputsThatSee(column, g.kernel_width_size, g.stride_width, g.out_width_size);
  Pack<float, kWidth> sum = {};
  // Descending outputs are ascending places of the kernel.
  for (int32_t r = rows.end - 1; r >= rows.begin; --r) {
    for (int32_t c = all_columns.end - 1; c >= all_columns.begin; --c) {
      const int64_t out = (int64_t{image} * g.out_height_size + r) * g.out_width_size + c;
      const int32_t place = (row - r * g.stride_h) * g.kernel_width_size + (column - c * g.stride_w);
      const int64_t pack = out * g.patch_packs + int64_t{place} * g.channel_packs + channel;
      const Pack<float, kWidth> v = LoadPack<kWidth>(columns + pack * kWidth);
      for (int k = 0; k < kWidth; ++k) sum.v[k] += v.v[k];
    }
  }
  StorePack(sum, dx + int64_t{i} * kWidth);
}

Gather GatherOf(const PatchShape& s, int width, int64_t count) {
  const int64_t channels = s.channels / width;
  const int64_t patch = s.patch() / width;
  return {.count = static_cast<uint32_t>(count / width),
          .patch = Divisor(patch),
          .channels = Divisor(channels),
          .kernel_width = Divisor(s.kernel_width),
          .out_width = Divisor(s.out_width),
          .out_height = Divisor(s.out_height),
          .in_width = Divisor(s.in_width),
          .in_height = Divisor(s.in_height),
          .stride_width = Divisor(s.stride_width),
          .stride_height = Divisor(s.stride_height),
          .channel_packs = static_cast<int32_t>(channels),
          .patch_packs = static_cast<int32_t>(patch),
          .in_height_size = static_cast<int32_t>(s.in_height),
          .in_width_size = static_cast<int32_t>(s.in_width),
          .out_height_size = static_cast<int32_t>(s.out_height),
          .out_width_size = static_cast<int32_t>(s.out_width),
          .kernel_height_size = static_cast<int32_t>(s.kernel_height),
          .kernel_width_size = static_cast<int32_t>(s.kernel_width),
          .stride_h = static_cast<int32_t>(s.stride_height),
          .stride_w = static_cast<int32_t>(s.stride_width),
          .padding_h = static_cast<int32_t>(s.padding_height),
          .padding_w = static_cast<int32_t>(s.padding_width)};
}

using Kernel = void (*)(Gather, const float*, float*);

// One thread for each pack of `out`, which has `count` floats.
cudaError_t LaunchGather(cudaStream_t stream, const PatchShape& s, Kernel packs, Kernel elements, const float* in,
                         float* out, int64_t count) {
  const bool by_packs = s.channels % kPackFloats == 0 && AlignedForPacks(in, out);
  const Gather g = GatherOf(s, by_packs ? kPackFloats : 1, count);
  return Launch(stream, {.blocks = CeilDivide(g.count, kBlockThreads)}, by_packs ? packs : elements, g, in, out);
}

}  // namespace

cudaError_t Im2col(cudaStream_t stream, const PatchShape& s, const float* x, float* columns) {
  return LaunchGather(stream, s, Im2colKernel<kPackFloats>, Im2colKernel<1>, x, columns, s.rows() * s.patch());
}

cudaError_t Col2im(cudaStream_t stream, const PatchShape& s, const float* columns, float* dx) {
  return LaunchGather(stream, s, Col2imKernel<kPackFloats>, Col2imKernel<1>, columns, dx,
                      s.images * s.in_height * s.in_width * s.channels);
}

}  // namespace starring::cuda
