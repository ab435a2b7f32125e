// Operations that slide a window over each channel by itself, on NHWC: depthwise convolutions, and average pools.
//
// Activations and their gradients of a call have the same elements; weights, bias and sums are float32.
//
// Words: a *tap* is a place of the window, counted row by row.
#ifndef STARRING_KERNELS_CUDA_CHANNEL_WINDOWS_H_
#define STARRING_KERNELS_CUDA_CHANNEL_WINDOWS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/im2col.h"
#include "kernels/element.h"

namespace starring::cuda {

// y = the sum of x over each window: with weights and from the bias on, or, where `weight` is null, divided by the
// window's places. Padding is 0.
// Shapes:      x: (images, in_height, in_width, channels); weight: (channels, taps); bias: (channels) or null;
//              y: (images, out_height, out_width, channels).
// Writes:      y is overwritten (=).
// Launch:      256 threads a block, one thread per 16 bytes of neighbouring channels (or per output), no shared memory.
// Requires:    16-byte alignment and channels in whole packs for the vector path, scalar path otherwise (both tested).
// Cost:        x read once where windows do not overlap, else mostly from the cache; y written once: bandwidth-bound.
// Determinism: bitwise. Reference: the CPU's, tolerance 0.
[[nodiscard]] cudaError_t ChannelWindowsForward(cudaStream_t stream, const PatchShape& window, ConstElements x,
                                                const float* weight, const float* bias, Elements y);

// dx = the sum of dy over the outputs that see each element, in row-major order, with weights, or divided by the
// window's places.
// Shapes:      as ChannelWindowsForward, with dy for y and dx for x.
// Writes:      dx is overwritten (=): every element gathers its own sum, so there are no atomics.
// Launch:      as ChannelWindowsForward, a thread per 16 bytes of neighbouring channels of dx (or per element).
// Requires:    as ChannelWindowsForward.
// Cost:        as ChannelWindowsForward.
// Determinism: bitwise. Reference: the CPU's, tolerance 0.
[[nodiscard]] cudaError_t ChannelWindowsBackward(cudaStream_t stream, const PatchShape& window, ConstElements dy,
                                                 const float* weight, Elements dx);

// The floats of `partial` below.
int64_t DepthwisePartialFloats(const PatchShape& window);

// dweight = for each tap and channel the sum of x * dy over all outputs.
// Shapes:      x, dy as above; dweight: (channels, taps); partial: DepthwisePartialFloats(window).
// Writes:      dweight is overwritten (=); partial is scratch memory.
// Launch:      two kernels. 256 threads a block: 32 channels in 8 rows, which walk down a tile of the outputs for one
//              tap; 1 KiB of shared memory. Then 256 threads a block, one thread for each weight, add up the tiles.
// Requires:    taps * channels < 2^31.
// Cost:        x and dy read once for each tap, mostly from the cache.
// Determinism: bitwise; sums are trees in a block, and tiles in order. Reference: double, tolerance 2e-5.
[[nodiscard]] cudaError_t DepthwiseWeightGradient(cudaStream_t stream, const PatchShape& window, ConstElements x,
                                                  ConstElements dy, float* partial, float* dweight);

}  // namespace starring::cuda

#endif  // STARRING_KERNELS_CUDA_CHANNEL_WINDOWS_H_
