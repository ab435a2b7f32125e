// Convolutions with few channels, without columns: the patches of im2col.h are gathered straight into shared memory.
//
// Words. A *product* is (rows, depth) by (depth, columns). A block computes a tile of 64 rows and all columns (padded
// to 16, 32 or 64). It walks along the depth in steps of 32, gathers both factors' parts into shared memory, and each
// thread sums 4 x 4 elements in registers, while the next step's parts come from memory. Large products have *tall*
// tiles of 128 rows, with 8 x 4 elements for a thread and the same order of sums. With fewer than 64 columns, 2 or 4
// groups of threads take turns along the depth, and their sums are added in order at the end.
//
// Factors are not rounded, and sums are float32 with fused multiplication and addition, as CudaMath::kFp32 promises.
#ifndef STARRING_KERNELS_CUDA_NARROW_CONVOLUTION_H_
#define STARRING_KERNELS_CUDA_NARROW_CONVOLUTION_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/bias_gradient.h"
#include "kernels/cuda/im2col.h"

namespace starring::cuda {

// The widest tile: the most channels on either side.
inline constexpr int64_t kNarrowChannelsMax = 64;
inline constexpr int64_t kNarrowPatchMax = 512;

// Whether these kernels compute a convolution, rather than columns and cuBLASLt. The limits are estimates. Columns cost
// 8 bytes of traffic per element (written, then read), the product 2 * out_channels FLOP. GPUs of 2020 to 2023 do 10 to
// 20 float32 FLOP in the time of one byte. With 16, the columns take longer than the product up to 64 output channels.
// The input gradient's tile holds no more than 64 input channels. Beyond kNarrowPatchMax a block's walk along the depth
// is long, and cuBLASLt, which may split it, is the better choice.
inline bool IsNarrow(const PatchShape& shape, int64_t out_channels) {
  return shape.channels <= kNarrowChannelsMax && out_channels <= kNarrowChannelsMax && shape.patch() <= kNarrowPatchMax;
}

struct NarrowForwardArgs {
  const float* x = nullptr;
  const float* weight = nullptr;
  const float* bias = nullptr;  // null: none
  Mask activation = Mask::kNone;
  float* y = nullptr;
};

// y = act(patches(x) weight^T + bias).
// Shapes:      x: (images, in_height, in_width, channels); weight: (out_channels, patch); bias: (out_channels);
//              y: (images, out_height, out_width, out_channels), float32.
// Writes:      y is overwritten (=).
// Launch:      256 threads a block, one block per 64 or 128 places of the output, 10 to 24 KiB of shared memory.
// Requires:    IsNarrow; 16-byte alignment and channels % 4 == 0 for vector loads, out_channels % 4 == 0 for vector
//              stores, scalar path otherwise (all tested).
// Cost:        2 * rows * patch * out_channels FLOP, more by the padding to 16, 32 or 64 columns; x is read from memory
//              about once (a block's patches overlap in the cache), y written once: bound by arithmetic and by the
//              latency of the gather, which other blocks of the multiprocessor hide.
// Determinism: bitwise. Reference: the convolution suite, tolerance 2e-5.
[[nodiscard]] cudaError_t NarrowForward(cudaStream_t stream, const PatchShape& shape, int64_t out_channels,
                                        const NarrowForwardArgs& args);

// dx = the gradient of x: for each element the sum over the kernel's places and the output channels.
// Shapes:      dy as y, dx as x, weight as above.
// Writes:      dx is overwritten (=): every element gathers its own sum, so there are no atomics.
// Launch:      256 threads a block, one block per 64 or 128 pixels of x, 10 to 24 KiB of shared memory.
// Requires:    IsNarrow; 16-byte alignment and out_channels % 4 == 0 for vector loads, channels % 4 == 0 for vector
//              stores, scalar path otherwise (all tested).
// Cost:        2 FLOP per pixel of x, place of the kernel, channel and output channel, also for the places that a
//              stride skips; dy read about once, dx written once.
// Determinism: bitwise. Reference: the convolution suite, tolerance 2e-5.
[[nodiscard]] cudaError_t NarrowInputGradient(cudaStream_t stream, const PatchShape& shape, int64_t out_channels,
                                              const float* dy, const float* weight, float* dx);

struct NarrowWeightGradientArgs {
  const float* x = nullptr;
  const float* dy = nullptr;
  float* dweight = nullptr;
  float* partial = nullptr;      // NarrowPartialFloats; no other operation writes there between the kernels
  unsigned* counters = nullptr;  // NarrowCounters, each 0 before and after
};

int64_t NarrowPartialFloats(const PatchShape& shape, int64_t out_channels);
int64_t NarrowCounters(const PatchShape& shape, int64_t out_channels);

// dweight = dy^T patches(x).
// Shapes:      as above; dweight as weight.
// Writes:      dweight is overwritten (=).
// Launch:      256 threads a block, one block per 64 elements of the patch and slice of the rows, 10 to 16 KiB of
//              shared memory. A slice has at least 256 rows, and there are at most 1024 blocks: the number depends on
//              the shape only. Where there are several slices, BiasGradient (bias_gradient.h) then adds their results.
// Requires:    IsNarrow; 16-byte alignment and channels % 4 == 0 for vector loads of x, out_channels % 4 == 0 for those
//              of dy, scalar path otherwise (all tested).
// Cost:        2 * rows * patch * out_channels FLOP, more by the padding; slices * patch * out_channels floats written
//              and read.
// Determinism: bitwise: each slice is summed in order, and slices are added by a tree of fixed shape; no atomics.
//              Reference: the convolution suite, tolerance 2e-5.
[[nodiscard]] cudaError_t NarrowWeightGradient(cudaStream_t stream, const PatchShape& shape, int64_t out_channels,
                                               const NarrowWeightGradientArgs& args);

}  // namespace starring::cuda

#endif  // STARRING_KERNELS_CUDA_NARROW_CONVOLUTION_H_
