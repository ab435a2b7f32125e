// Group normalisation on NHWC. Layer normalisation is the same with one group of one pixel, whose channels are all
// values of a sample.
#ifndef STARRING_KERNELS_CUDA_GROUP_NORM_H_
#define STARRING_KERNELS_CUDA_GROUP_NORM_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/element.h"

namespace starring::cuda {

struct GroupNormShape {
  int64_t images = 0, pixels = 0, channels = 0, groups = 1;
  float epsilon = 0;
};

// Device memory of one operation.
struct GroupNormMemory {
  float* mean = nullptr;               // (images, groups), of the last forward; so is inverse_deviation
  float* inverse_deviation = nullptr;  // (images, groups)
  float* partial = nullptr;            // GroupNormPartialFloats(shape); other operations may use it in between
};
int64_t GroupNormPartialFloats(const GroupNormShape& shape);

// y = (x - mean) / sqrt(variance + epsilon) * gamma + beta, with mean and variance of each image's group.
// Shapes:      x, y: (images, pixels, channels), of the same elements; gamma, beta: (channels), float32.
// Writes:      y, memory.mean and memory.inverse_deviation are overwritten (=).
// Launch:      256 threads a block, one block per image and group, 2 KiB of shared memory.
// Requires:    channels % groups == 0; images * pixels * channels < 2^31.
// Cost:        x read three times, mostly from the cache, and y written once.
// Determinism: bitwise; sums are in double, trees of fixed shape. Reference: double, tolerance 2e-5.
[[nodiscard]] cudaError_t GroupNormForward(cudaStream_t stream, const GroupNormShape& shape,
                                           const GroupNormMemory& memory, ConstElements x, const float* gamma,
                                           const float* beta, Elements y);

struct GroupNormGradients {
  ConstElements x;
  const float* gamma = nullptr;
  ConstElements dy;
  Elements dx;  // null if not needed
  float* dgamma = nullptr;
  float* dbeta = nullptr;
};

// Shapes:      dx, dy as x; dgamma, dbeta as gamma.
// Writes:      dx, dgamma, dbeta are overwritten (=); memory.partial is scratch memory.
// Launch:      three kernels: dx as GroupNormForward; the sums of the weights' gradients over tiles of rows, with 256
//              threads a block for 32 channels, 4 KiB of shared memory; one thread for each channel, which adds up the
//              tiles.
// Requires:    as GroupNormForward, which came before.
// Cost:        x and dy read three times, dx written once.
// Determinism: bitwise. Reference: double, tolerance 2e-5.
[[nodiscard]] cudaError_t GroupNormBackward(cudaStream_t stream, const GroupNormShape& shape,
                                            const GroupNormMemory& memory, const GroupNormGradients& gradients);

}  // namespace starring::cuda

#endif  // STARRING_KERNELS_CUDA_GROUP_NORM_H_
