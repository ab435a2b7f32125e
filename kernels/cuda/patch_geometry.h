// Where the windows of a convolution or of a pool are: a PatchShape (im2col.h) in the form that kernels use.
//
// Device code of .cu files; PatchGeometry is made on the host.
#ifndef STARRING_KERNELS_CUDA_PATCH_GEOMETRY_H_
#define STARRING_KERNELS_CUDA_PATCH_GEOMETRY_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/im2col.h"
#include "kernels/cuda/pack.h"

namespace starring::cuda {

struct PatchGeometry {
  Divisor patch, channels, kernel_width, in_width, in_height, out_width, out_height, stride_width, stride_height;
  int32_t patch_size, channels_size;
  int32_t in_height_size, in_width_size, out_height_size, out_width_size;
  int32_t kernel_height_size, kernel_width_size;
  int32_t stride_h, stride_w, padding_h, padding_w;

  explicit PatchGeometry(const PatchShape& s)
      : patch(s.patch()),
        channels(s.channels),
        kernel_width(s.kernel_width),
        in_width(s.in_width),
        in_height(s.in_height),
        out_width(s.out_width),
        out_height(s.out_height),
        stride_width(s.stride_width),
        stride_height(s.stride_height),
        patch_size(static_cast<int32_t>(s.patch())),
        channels_size(static_cast<int32_t>(s.channels)),
        in_height_size(static_cast<int32_t>(s.in_height)),
        in_width_size(static_cast<int32_t>(s.in_width)),
        out_height_size(static_cast<int32_t>(s.out_height)),
        out_width_size(static_cast<int32_t>(s.out_width)),
        kernel_height_size(static_cast<int32_t>(s.kernel_height)),
        kernel_width_size(static_cast<int32_t>(s.kernel_width)),
        stride_h(static_cast<int32_t>(s.stride_height)),
        stride_w(static_cast<int32_t>(s.stride_width)),
        padding_h(static_cast<int32_t>(s.padding_height)),
        padding_w(static_cast<int32_t>(s.padding_width)) {}
};

// A pixel of an image.
struct ImagePlace {
  int32_t image, h, w;
};

// Where the window of an output begins: a pixel of x, or outside of x where that is padding.
__device__ inline ImagePlace WindowOf(const PatchGeometry& g, uint32_t output) {
  const auto [line, column] = g.out_width.Split(output);
  const auto [image, row] = g.out_height.Split(line);
  return {static_cast<int32_t>(image), static_cast<int32_t>(row) * g.stride_h - g.padding_h,
          static_cast<int32_t>(column) * g.stride_w - g.padding_w};
}

// The place of a pixel of x, counted from where the padding begins.
__device__ inline ImagePlace PaddedPixel(const PatchGeometry& g, uint32_t pixel) {
  const auto [line, w] = g.in_width.Split(pixel);
  const auto [image, h] = g.in_height.Split(line);
  return {static_cast<int32_t>(image), static_cast<int32_t>(h) + g.padding_h, static_cast<int32_t>(w) + g.padding_w};
}

__device__ inline bool IsInside(const PatchGeometry& g, int32_t h, int32_t w) {
  return h >= 0 && h < g.in_height_size && w >= 0 && w < g.in_width_size;
}

// The index of the first channel of pixel (h, w) of x. REQUIRES: IsInside(g, h, w).
__device__ inline int64_t InputIndex(const PatchGeometry& g, int32_t image, int32_t h, int32_t w) {
  return ((int64_t{image} * g.in_height_size + h) * g.in_width_size + w) * g.channels_size;
}

// The outputs of one dimension whose windows see a place (padding counted): [begin, end).
struct OutputRange {
  int32_t begin, end;
};

__device__ inline OutputRange OutputsThatSee(int32_t at, int32_t kernel, const Divisor& stride, int32_t out) {
  const int32_t last = static_cast<int32_t>(stride.Quotient(static_cast<uint32_t>(at)));
  // The first window that does not end before `at`: ceil((at - kernel + 1) / stride).
  const int32_t begin = at < kernel ? 0 : static_cast<int32_t>(stride.Quotient(static_cast<uint32_t>(at - kernel))) + 1;
  return {begin, last + 1 < out ? last + 1 : out};
}

// The outputs whose windows see one pixel of x: a rectangle of its image's outputs. An input gradient gathers from them
// instead of scattering to pixels, so that no two threads write to one address and the order of sums is fixed. The
// caller walks the rectangle itself, because that order is part of its contract.
struct PixelsOutputs {
  ImagePlace pixel;  // padding counted
  OutputRange rows, columns;
};

__device__ inline PixelsOutputs OutputsOfPixel(const PatchGeometry& g, uint32_t pixel) {
  const ImagePlace at = PaddedPixel(g, pixel);
  return {at, OutputsThatSee(at.h, g.kernel_height_size, g.stride_height, g.out_height_size),
          OutputsThatSee(at.w, g.kernel_width_size, g.stride_width, g.out_width_size)};
}

// One of these outputs: its number in the batch, and at which place of its window, row by row, the pixel is.
struct OutputAndPlace {
  int64_t output;
  int32_t place;
};

__device__ inline OutputAndPlace OutputAt(const PatchGeometry& g, const ImagePlace& pixel, int32_t row,
                                          int32_t column) {
  return {(int64_t{pixel.image} * g.out_height_size + row) * g.out_width_size + column,
          (pixel.h - row * g.stride_h) * g.kernel_width_size + (pixel.w - column * g.stride_w)};
}

}  // namespace starring::cuda

#endif  // STARRING_KERNELS_CUDA_PATCH_GEOMETRY_H_
