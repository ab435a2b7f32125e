// Convolutions by cuDNN: kernels/device.h's, where the context has the library and the library has engines.
#ifndef STARRING_KERNELS_CUDA_CUDNN_CONVOLUTION_H_
#define STARRING_KERNELS_CUDA_CUDNN_CONVOLUTION_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/device.h"

namespace starring {

// Null where cuDNN has no engine that may be used for one of the shape's products (cudnn_product.h): then all of them
// are for kernels of ours. Either way the choice is noted in context->engines. `context` outlives the result.
// REQUIRES: CheckShape(spec); context->cudnn_handle; what ReserveForActivationGradient reserves.
absl::StatusOr<std::unique_ptr<Conv2d>> CreateCudnnConv2d(CudaContext* context, const Conv2dSpec& spec);

}  // namespace starring

#endif  // STARRING_KERNELS_CUDA_CUDNN_CONVOLUTION_H_
