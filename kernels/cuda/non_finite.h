// Finds a NaN or an infinity among gradients that another place than the GPU's optimizer takes.
#ifndef STARRING_KERNELS_CUDA_NON_FINITE_H_
#define STARRING_KERNELS_CUDA_NON_FINITE_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/step_values.h"

namespace starring::cuda {

// result->non_finite_element = the index of a value that is NaN or infinite, if there is one.
// Shapes:      values: (count) float32.
// Writes:      result->non_finite_element, only where there is such a value; of several any one wins.
// Launch:      256 threads a block, one thread per 4 values, no shared memory.
// Requires:    `result` may be pinned host memory, which is written only when something is found; 16-byte alignment for
//              the vector path, scalar path otherwise (both tested).
// Cost:        4 bytes moved per value: bandwidth-bound.
// Determinism: whether there is one, bitwise; which one, not: a run that finds one ends. Reference: FindNonFinite of
//              common/arithmetic/non_finite.h.
cudaError_t FindNonFinite(cudaStream_t stream, const float* values, int64_t count, CudaStepResult* result);

}  // namespace starring::cuda

#endif  // STARRING_KERNELS_CUDA_NON_FINITE_H_
