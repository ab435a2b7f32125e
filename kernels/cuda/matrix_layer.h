// The products of a dense layer, which are also those of a convolution over its columns (im2col.h).
//
// Words: x (batch, in), weight (out, in), bias (out), y and dy (batch, out); of columns, the batch is their rows.
//
// Thread safety: one thread.
#ifndef STARRING_KERNELS_CUDA_MATRIX_LAYER_H_
#define STARRING_KERNELS_CUDA_MATRIX_LAYER_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/matrix_product.h"
#include "kernels/device.h"

namespace starring {

class MatrixLayer {
 public:
  // `context` outlives the result.
  static absl::StatusOr<MatrixLayer> Create(CudaContext* context, const DenseSpec& spec);

  // y = act(x weight^T + bias).
  void Forward(const float* x, const float* weight, const float* bias, float* y) { y_->Run(x, weight, bias, y); }
  // dweight = dy^T x, or += with kAdd.
  void WeightGradient(const float* x, const float* dy, float* dweight, Write write) {
    dweight_->Run(dy, x, nullptr, dweight, write);
  }
  // dx = dy weight. REQUIRES: InputGradient::kNeeded.
  void InputGradientOf(const float* dy, const float* weight, float* dx) { dx_->Run(dy, weight, nullptr, dx); }

 private:
  std::unique_ptr<MatrixProduct> y_, dweight_, dx_;
};

// What comes before the products of a backward pass: masks dy where the activation was kRelu, and sums it up into
// dbias, unless that is null. Uses the scratch memory that ReserveForActivationGradient reserved.
struct ActivationGradientArgs {
  int64_t rows = 0, channels = 0;
  Activation activation = Activation::kNone;
  const float* y = nullptr;
  float* dy = nullptr;
  float* dbias = nullptr;
};
absl::Status ReserveForActivationGradient(CudaContext* context, int64_t rows, int64_t channels);
void ActivationGradient(CudaContext* context, const ActivationGradientArgs& args);

}  // namespace starring

#endif  // STARRING_KERNELS_CUDA_MATRIX_LAYER_H_
