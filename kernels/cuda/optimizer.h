// The optimizers of common/arithmetic/optimizer.h on device memory.
#ifndef STARRING_KERNELS_CUDA_OPTIMIZER_H_
#define STARRING_KERNELS_CUDA_OPTIMIZER_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/step_values.h"

namespace starring::cuda {

enum class Update { kSgd, kMomentum, kNesterov, kAdamW };

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

// One update of all elements: the formulas and the order of operations of common/arithmetic/optimizer.cc. And, with
// `result`, result->non_finite_element = the index of a gradient that is NaN or infinite, if there is one, as
// non_finite.h. The update is made all the same: it is the caller who lets nothing of it out. Shapes:      all (count)
// float32. Writes:      parameters_out is overwritten (=), states in place; result->non_finite_element where there is
// such a
//              gradient.
// Launch:      256 threads a block, one thread per 4 elements, no shared memory.
// Requires:    16-byte alignment for the vector path, scalar path otherwise (both tested).
// Cost:        12 (SGD), 20 (momentum) or 28 (AdamW) bytes moved per element: bandwidth-bound.
// Determinism: bitwise. Reference: common/arithmetic/optimizer.h, tolerance 0: additions, multiplications, divisions
//              and square roots are IEEE's on both sides and none is contracted. If several elements are not finite,
//              any of them may be the one that is found.
cudaError_t ApplyUpdate(cudaStream_t stream, const OptimizerArgs& args);

}  // namespace starring::cuda

#endif  // STARRING_KERNELS_CUDA_OPTIMIZER_H_
