// The operations of kernels/device.h that are kernels of ours.
#ifndef STARRING_KERNELS_CUDA_CUDA_OPERATIONS_H_
#define STARRING_KERNELS_CUDA_CUDA_OPERATIONS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/device.h"

namespace starring {

// `context` outlives the results. ResourceExhausted where memory does not fit.
absl::StatusOr<std::unique_ptr<MaxPool2d>> CreateCudaMaxPool2d(CudaContext* context, const Pool2dSpec& spec);
absl::StatusOr<std::unique_ptr<GlobalAveragePool>> CreateCudaGlobalAveragePool(CudaContext* context,
                                                                               const GlobalAveragePoolSpec& spec);
absl::StatusOr<std::unique_ptr<BatchNorm>> CreateCudaBatchNorm(CudaContext* context, const BatchNormSpec& spec);
absl::StatusOr<std::unique_ptr<Dropout>> CreateCudaDropout(CudaContext* context, const DropoutSpec& spec);
absl::StatusOr<std::unique_ptr<SoftmaxCrossEntropy>> CreateCudaSoftmaxCrossEntropy(CudaContext* context,
                                                                                   const SoftmaxCrossEntropySpec& spec);

}  // namespace starring

#endif  // STARRING_KERNELS_CUDA_CUDA_OPERATIONS_H_
