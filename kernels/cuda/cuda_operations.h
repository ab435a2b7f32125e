// The operations of kernels/device.h on a GPU.
//
//   cuda_operations.cc         kernels of ours alone: pools, depthwise convolutions, activations, norms, the loss
//   cuda_operations_matrix.cc  dense layers, and convolutions by cuBLASLt (matrix_product.h) or by our own kernels
//                              (narrow_convolution.h)
//   cuda_operations_cudnn.cc   convolutions by cuDNN (cudnn_product.h)
//
// A factory fails with InvalidArgument on a shape that makes no sense, unless it requires a checked one, and with
// ResourceExhausted where memory does not fit. `context` outlives the results.
//
// Thread safety: one thread.
#ifndef STARRING_KERNELS_CUDA_CUDA_OPERATIONS_H_
#define STARRING_KERNELS_CUDA_CUDA_OPERATIONS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/device.h"

namespace starring {

// One for each alternative of OperationSpec. REQUIRES: CheckShape(spec).
[[nodiscard]] absl::StatusOr<std::unique_ptr<LayerOperation>> CreateCudaOperation(CudaContext* context,
                                                                                  const DenseSpec& spec);
// By cuDNN if the context has it and it has engines for the shape; otherwise by cuBLASLt or our own kernels.
[[nodiscard]] absl::StatusOr<std::unique_ptr<LayerOperation>> CreateCudaOperation(CudaContext* context,
                                                                                  const Conv2dSpec& spec);
[[nodiscard]] absl::StatusOr<std::unique_ptr<LayerOperation>> CreateCudaOperation(CudaContext* context,
                                                                                  const Pool2dSpec& spec);
[[nodiscard]] absl::StatusOr<std::unique_ptr<LayerOperation>> CreateCudaOperation(CudaContext* context,
                                                                                  const GlobalAveragePoolSpec& spec);
[[nodiscard]] absl::StatusOr<std::unique_ptr<LayerOperation>> CreateCudaOperation(CudaContext* context,
                                                                                  const ActivationSpec& spec);
[[nodiscard]] absl::StatusOr<std::unique_ptr<LayerOperation>> CreateCudaOperation(CudaContext* context,
                                                                                  const AveragePool2dSpec& spec);
[[nodiscard]] absl::StatusOr<std::unique_ptr<LayerOperation>> CreateCudaOperation(CudaContext* context,
                                                                                  const DepthwiseConv2dSpec& spec);
[[nodiscard]] absl::StatusOr<std::unique_ptr<LayerOperation>> CreateCudaOperation(CudaContext* context,
                                                                                  const ConcatPartSpec& spec);
[[nodiscard]] absl::StatusOr<std::unique_ptr<LayerOperation>> CreateCudaOperation(CudaContext* context,
                                                                                  const GroupNormSpec& spec);

// Null where cuDNN has no engine that may be used for one of the shape's three products: then the whole convolution is
// for our own kernels. Either way the choice is noted in context->engines.
// REQUIRES: CheckShape(spec); context->cudnn_handle; ReserveForActivationGradient (matrix_product.h) was called.
[[nodiscard]] absl::StatusOr<std::unique_ptr<LayerOperation>> CreateCudnnConv2d(CudaContext* context,
                                                                                const Conv2dSpec& spec);

[[nodiscard]] absl::StatusOr<std::unique_ptr<BatchNorm>> CreateCudaBatchNorm(CudaContext* context,
                                                                             const BatchNormSpec& spec);
[[nodiscard]] absl::StatusOr<std::unique_ptr<Dropout>> CreateCudaDropout(CudaContext* context, const DropoutSpec& spec);
[[nodiscard]] absl::StatusOr<std::unique_ptr<Loss>> CreateCudaLoss(CudaContext* context, const LossSpec& spec);

}  // namespace starring

#endif  // STARRING_KERNELS_CUDA_CUDA_OPERATIONS_H_
