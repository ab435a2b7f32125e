// Max pooling and global average pooling on NHWC. Tensors of a call have the same elements; arithmetic is in float.
#ifndef STARRING_KERNELS_CUDA_POOL_H_
#define STARRING_KERNELS_CUDA_POOL_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/im2col.h"
#include "kernels/element.h"

namespace starring::cuda {

// The bytes that remember, for every output, the place of the maximum in its window: one byte each where the window has
// at most 256 places, otherwise four.
int64_t WinnerBytes(const PatchShape& window);

// y = the maximum of each window. Among equal maxima the first in row-major order wins; NaN wins over numbers.
// Shapes:      x: (images, in_height, in_width, channels); y, winners: (images, out_height, out_width, channels).
// Writes:      y, winners are overwritten (=).
// Launch:      256 threads a block, one thread per 4 neighbouring channels (or per output), no shared memory.
// Requires:    padding smaller than the kernel; 16-byte alignment and channels % 4 == 0 for the vector path, scalar
//              path otherwise (both tested).
// Cost:        x read once where windows do not overlap, an element and a byte written per output: bandwidth-bound.
// Determinism: bitwise. Reference: double, tolerance 0.
[[nodiscard]] cudaError_t MaxPoolForward(cudaStream_t stream, const PatchShape& window, ConstElements x, Elements y,
                                         void* winners);

// dx = the sum of dy over the windows in which this element won, in row-major order of the windows.
// Shapes:      as MaxPoolForward, with dy for y and dx for x.
// Writes:      dx is overwritten (=): every element gathers its own sum, so there are no atomics.
// Launch:      256 threads a block, one thread per 16 bytes of neighbouring channels of dx (or per element), no shared
//              memory.
// Requires:    `winners` of a forward; channels in whole packs for the vector path, else as there.
// Cost:        an element and a byte read per output (times the windows' overlap), an element written per input:
//              bandwidth-bound.
// Determinism: bitwise. Reference: double, tolerance 1e-6.
[[nodiscard]] cudaError_t MaxPoolBackward(cudaStream_t stream, const PatchShape& window, ConstElements dy,
                                          const void* winners, Elements dx);

struct AveragePoolShape {
  int64_t images = 0, pixels = 0, channels = 0;
};

// y = the mean over the pixels of each image's channel.
// Shapes:      x: (images, pixels, channels); y: (images, channels).
// Writes:      y is overwritten (=).
// Launch:      256 threads a block; four threads of a warp share the pixels of 16 bytes of neighbouring channels (or of
//              one) and add up by shuffles, no shared memory.
// Requires:    pixels >= 1; 16-byte alignment and channels in whole packs for the vector path, scalar path otherwise
//              (both tested).
// Cost:        x read once: bandwidth-bound where images * channels fill the device.
// Determinism: bitwise; sums are trees of fixed shape. Reference: double, tolerance 1e-6.
[[nodiscard]] cudaError_t AveragePoolForward(cudaStream_t stream, const AveragePoolShape& shape, ConstElements x,
                                             Elements y);

// dx = dy / pixels, for every pixel.
// Shapes:      as AveragePoolForward, with dy for y and dx for x.
// Writes:      dx is overwritten (=).
// Launch:      256 threads a block, one thread per 16 bytes of neighbouring channels of dx (or per element), no shared
//              memory.
// Requires:    as AveragePoolForward.
// Cost:        dx written once, dy from the cache: bandwidth-bound.
// Determinism: bitwise. Reference: finite differences in double, tolerance 1e-5.
[[nodiscard]] cudaError_t AveragePoolBackward(cudaStream_t stream, const AveragePoolShape& shape, ConstElements dy,
                                              Elements dx);

}  // namespace starring::cuda

#endif  // STARRING_KERNELS_CUDA_POOL_H_
