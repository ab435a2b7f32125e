// The operations of kernels/device.h that hold matrix products: dense layers and convolutions.
#ifndef STARRING_KERNELS_CUDA_CUDA_LAYERS_H_
#define STARRING_KERNELS_CUDA_CUDA_LAYERS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/device.h"

namespace starring {

// `context` outlives the results. ResourceExhausted where temporary memory does not fit.
absl::StatusOr<std::unique_ptr<Dense>> CreateCudaDense(CudaContext* context, const DenseSpec& spec);
absl::StatusOr<std::unique_ptr<Conv2d>> CreateCudaConv2d(CudaContext* context, const Conv2dSpec& spec);

}  // namespace starring

#endif  // STARRING_KERNELS_CUDA_CUDA_LAYERS_H_
