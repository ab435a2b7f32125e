// The functions of kernels/activation_math.h over flat arrays.
#ifndef STARRING_KERNELS_CUDA_ACTIVATION_H_
#define STARRING_KERNELS_CUDA_ACTIVATION_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/activation_math.h"
#include "kernels/element.h"

namespace starring::cuda {

struct ActivationArgs {
  int64_t count = 0;
  ActivationFunction function = ActivationFunction::kRelu6;
  float parameter = 0;
};

// y = f(x).
// Shapes:      x, y: (count), contiguous; y may alias x.
// Writes:      y is overwritten (=).
// Launch:      256 threads a block, one thread per 16 bytes, no shared memory.
// Requires:    count >= 0; 16-byte alignment for the vector path, scalar path otherwise (both tested).
// Cost:        2 elements moved and up to 40 operations per element: bandwidth-bound.
// Determinism: bitwise. Reference: the CPU's, tolerance 0.
[[nodiscard]] cudaError_t ActivationForward(cudaStream_t stream, const ActivationArgs& args, ConstElements x,
                                            Elements y);

// dx = dy * f'.
// Shapes:      at, dy, dx: (count), contiguous; dx may alias dy. `at` is x or y, as BackwardReadsInput says.
// Writes:      dx is overwritten (=).
// Launch:      as ActivationForward.
// Requires:    as ActivationForward.
// Cost:        3 elements moved and up to 50 operations per element: bandwidth-bound.
// Determinism: bitwise. Reference: the CPU's, tolerance 0.
[[nodiscard]] cudaError_t ActivationBackward(cudaStream_t stream, const ActivationArgs& args, ConstElements at,
                                             ConstElements dy, Elements dx);

}  // namespace starring::cuda

#endif  // STARRING_KERNELS_CUDA_ACTIVATION_H_
