// Convolution as a matrix product: the steps before and after the product. Chellapilla, Puri, Simard, "High Performance
// Convolutional Neural Networks for Document Processing", 2006.
//
// Words. A *patch* is the part of x that the kernel covers at one place of the output: kernel_height * kernel_width *
// channels floats, in the memory order of one filter of the weight. The *columns* are the patches of some images, one
// per row: (images * out_height * out_width, patch).
#ifndef STARRING_KERNELS_CUDA_IM2COL_H_
#define STARRING_KERNELS_CUDA_IM2COL_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace starring::cuda {

struct PatchShape {
  int64_t images = 0;  // so many that the columns have at most 2^31 - 1 floats
  int64_t in_height = 0, in_width = 0, channels = 0;
  int64_t out_height = 0, out_width = 0;
  int64_t kernel_height = 0, kernel_width = 0;
  int64_t stride_height = 1, stride_width = 1, padding_height = 0, padding_width = 0;

  int64_t rows() const { return images * out_height * out_width; }
  int64_t patch() const { return kernel_height * kernel_width * channels; }
};

// The shape of one layer's whole batch. Spec: Conv2dSpec or Pool2dSpec of kernels/device.h.
template <typename Spec>
PatchShape PatchShapeOf(const Spec& s, int64_t channels) {
  return {.images = s.batch,
          .in_height = s.in_height,
          .in_width = s.in_width,
          .channels = channels,
          .out_height = s.out_height(),
          .out_width = s.out_width(),
          .kernel_height = s.kernel_height,
          .kernel_width = s.kernel_width,
          .stride_height = s.stride_height,
          .stride_width = s.stride_width,
          .padding_height = s.padding_height,
          .padding_width = s.padding_width};
}

// columns = the patches of x; padding is 0.
// Shapes:      x: (images, in_height, in_width, channels); columns: (rows, patch), float32.
// Writes:      columns are overwritten (=).
// Launch:      256 threads a block, one thread per 4 neighbouring channels (or per element), no shared memory.
// Requires:    rows * patch < 2^31; 16-byte alignment and channels % 4 == 0 for the vector path, scalar path otherwise
//              (both tested).
// Cost:        4 bytes written per float of the columns, x read about once (neighbouring patches meet in the cache).
// Determinism: copies. Reference: the convolution suite, tolerance 2e-5.
[[nodiscard]] cudaError_t Im2col(cudaStream_t stream, const PatchShape& shape, const float* x, float* columns);

// dx = for each element of x the sum of the columns' elements that were read from it, in row-major order of the kernel.
// Shapes:      columns: (rows, patch); dx: (images, in_height, in_width, channels), float32.
// Writes:      dx is overwritten (=): every element gathers its own sum, so there are no atomics.
// Launch:      as Im2col, a thread per 4 neighbouring channels of dx (or per element).
// Requires:    as Im2col.
// Cost:        the columns read once, dx written once: bandwidth-bound.
// Determinism: bitwise. Reference: the convolution suite, tolerance 2e-5.
[[nodiscard]] cudaError_t Col2im(cudaStream_t stream, const PatchShape& shape, const float* columns, float* dx);

}  // namespace starring::cuda

#endif  // STARRING_KERNELS_CUDA_IM2COL_H_
