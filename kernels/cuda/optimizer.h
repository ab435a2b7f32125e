// The optimizers of common/arithmetic/optimizer.h on device memory, and the search for gradients that are not finite.
//
// Each function enqueues on `stream` and returns the error of the launch.
#ifndef STARRING_KERNELS_CUDA_OPTIMIZER_H_
#define STARRING_KERNELS_CUDA_OPTIMIZER_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/step_values.h"
#include "kernels/cuda/update_formula.h"

namespace starring::cuda {

struct OptimizerArgs {
  Update update = Update::kSgd;
  int64_t count = 0;
  const float* gradient = nullptr;
  const float* parameters_in = nullptr;
  float* parameters_out = nullptr;  // may be parameters_in
  float* first = nullptr;           // momentum_buffer or exp_avg
  float* second = nullptr;          // exp_avg_sq
  // The factors, unless `bound`, in device memory, has them when the kernel runs.
  CudaOptimizerScalars scalars;
  const CudaStepValues* bound = nullptr;
  CudaStepResult* result = nullptr;  // null: gradients are not looked at
};

// One update of all elements, by the formulas and in the order of operations of common/arithmetic/optimizer.cc. With
// `result`, gradients are searched in the same pass as FindNonFinite searches values. The update is made even if one
// is found: the caller then discards the parameters.
// Shapes:      all (count) float32.
// Writes:      parameters_out is overwritten (=), states in place; result->non_finite_element where a gradient is not
//              finite.
// Launch:      256 threads a block, one thread per 4 elements, no shared memory.
// Requires:    16-byte alignment for the vector path, scalar path otherwise (both tested).
// Cost:        12 (SGD), 20 (momentum) or 28 (AdamW) bytes moved per element: bandwidth-bound.
// Determinism: bitwise. Reference: common/arithmetic/optimizer.h, tolerance 0: additions, multiplications, divisions
//              and square roots are IEEE's on both sides, and none is contracted. If several elements are not finite,
//              any of them may be the one that is found.
[[nodiscard]] cudaError_t ApplyUpdate(cudaStream_t stream, const OptimizerArgs& args);

// result->non_finite_element = the index of a value that is NaN or infinite, if there is one.
// Shapes:      values: (count) float32.
// Writes:      result->non_finite_element, only where a value is not finite; of several indices any one may remain.
// Launch:      256 threads a block, one thread per 4 values, no shared memory.
// Requires:    count >= 0; `result` is device memory, or pinned host memory, which is written only when something is
//              found; 16-byte alignment for the vector path, scalar path otherwise (both tested).
// Cost:        4 bytes moved per value: bandwidth-bound.
// Determinism: bitwise whether there is such a value; which index remains may differ, but a run that finds one ends.
//              Reference: common/arithmetic/array_passes.h.
[[nodiscard]] cudaError_t FindNonFinite(cudaStream_t stream, const float* values, int64_t count,
                                        CudaStepResult* result);

}  // namespace starring::cuda

#endif  // STARRING_KERNELS_CUDA_OPTIMIZER_H_
