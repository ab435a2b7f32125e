// The functions of kernels/activation_math.h over flat arrays.
#ifndef STARRING_KERNELS_CUDA_ACTIVATION_H_
#define STARRING_KERNELS_CUDA_ACTIVATION_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/activation_math.h"

namespace starring::cuda {

struct ActivationArgs {
  int64_t count = 0;
  ActivationFunction function = ActivationFunction::kRelu6;
  float parameter = 0;
};

// y = f(x).
// Shapes:      x, y: (count) float32, contiguous; y may alias x.
// Writes:      y is overwritten (=).
// Launch:      256 threads a block, one thread per 4 elements, no shared memory.
// Requires:    count >= 0; 16-byte alignment for the vector path, scalar path otherwise (both tested).
// Cost:        8 bytes moved and up to 40 operations per element: bandwidth-bound.
// Determinism: bitwise. Reference: the CPU's, tolerance 0.
[[nodiscard]] cudaError_t ActivationForward(cudaStream_t stream, const ActivationArgs& args, const float* x, float* y);

// dx = dy * f'.
// Shapes:      at, dy, dx: (count) float32, contiguous; dx may alias dy. `at` is x or y, as BackwardReadsInput says.
// Writes:      dx is overwritten (=).
// Launch:      as ActivationForward.
// Requires:    as ActivationForward.
// Cost:        12 bytes moved and up to 50 operations per element: bandwidth-bound.
// Determinism: bitwise. Reference: the CPU's, tolerance 0.
[[nodiscard]] cudaError_t ActivationBackward(cudaStream_t stream, const ActivationArgs& args, const float* at,
                                             const float* dy, float* dx);

}  // namespace starring::cuda

#endif  // STARRING_KERNELS_CUDA_ACTIVATION_H_
