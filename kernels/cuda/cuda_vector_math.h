// CudaVectorMath of cuda_device.h, and the optimizer that it shares with the device.
#ifndef STARRING_KERNELS_CUDA_CUDA_VECTOR_MATH_H_
#define STARRING_KERNELS_CUDA_CUDA_VECTOR_MATH_H_

#include <cuda_runtime.h>

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_device.h"

namespace starring {

// On the GPU `ordinal`, whatever the calling thread's current one is. `watch` outlives it and may be null.
absl::StatusOr<std::unique_ptr<CudaVectorMath>> CreateCudaVectorMath(int ordinal, CudaWatch* watch);

// CudaDevice::ApplyOptimizer on `stream`; the factors are those of `bound`, device memory, unless it is null; gradients
// that are not finite go to `result`, device memory, unless it is null.
cudaError_t EnqueueUpdate(cudaStream_t stream, const OptimizerConfig& config, const UpdateArgs& args,
                          const CudaStepValues* bound, CudaStepResult* result);

}  // namespace starring

#endif  // STARRING_KERNELS_CUDA_CUDA_VECTOR_MATH_H_
