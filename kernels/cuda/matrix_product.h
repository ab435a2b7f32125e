// Matrix products of fixed shapes, by cuBLASLt: one product, and the three that a dense layer or a convolution needs.
//
// A product is c = activation(op(a) op(b) + bias), or c += op(a) op(b), all row-major: op(a) is (rows, depth), op(b)
// (depth, columns), c (rows, columns), bias (columns). Sums are float32. Factors have one kind of element; c and bias
// have one, float32 or that of the factors. CudaMath says how float32 factors are rounded.
//
// Bits: cuBLASLt's heuristics choose the algorithm once, in Create, among those that add in a fixed order. Where none
// of them also applies bias and activation, a kernel of ours does so afterwards.
//
// cuBLASLt's ReLU may turn NaN into 0. A NaN still reaches the trainer's check: through the product with x in this
// layer's weight gradient, where 0 * NaN is NaN, or through the loss.
//
// Thread safety: one thread.
#ifndef STARRING_KERNELS_CUDA_MATRIX_PRODUCT_H_
#define STARRING_KERNELS_CUDA_MATRIX_PRODUCT_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/device.h"

namespace starring {

enum class Stored { kPlain, kTransposed };  // op(a) is a, or the transpose of a
enum class Write { kOverwrite, kAdd };

struct MatrixProductSpec {
  int64_t rows = 0, columns = 0, depth = 0;
  Stored a = Stored::kPlain, b = Stored::kPlain;
  Bias bias = Bias::kNone;
  Activation activation = Activation::kNone;
  Element factors = Element::kFloat32, result = Element::kFloat32;
};

class MatrixProduct {
 public:
  // `context` outlives the result. Internal, with the numbers, where cuBLASLt has no algorithm.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<MatrixProduct>> Create(CudaContext* context,
                                                                             const MatrixProductSpec& spec);
  ~MatrixProduct();

  // REQUIRES: all pointers 16-byte aligned; c overlaps nothing; kAdd only without bias and activation.
  void Run(ConstElements a, ConstElements b, ConstElements bias, Elements c, Write write = Write::kOverwrite);

 private:
  MatrixProduct(CudaContext* context, const MatrixProductSpec& spec) : context_(context), spec_(spec) {}
  absl::Status Prepare();
  absl::Status Describe();
  absl::Status ChooseAlgorithm(cublasLtEpilogue_t epilogue, bool* found);
  cublasLtEpilogue_t Epilogue() const;

  CudaContext* const context_;
  const MatrixProductSpec spec_;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, c_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_ = {};
  bool has_epilogue_ = false;  // otherwise AddBias follows the product
};

// The three products of a dense layer, which are also those of a convolution over its columns (im2col.h).
//
// Words: x (batch, in), weight (out, in), bias (out), y and dy (batch, out). With columns, the batch is their rows.
class DenseProducts {
 public:
  // `context` outlives the result.
  [[nodiscard]] static absl::StatusOr<DenseProducts> Create(CudaContext* context, const DenseSpec& spec);

  // y = act(x weight^T + bias).
  void Forward(ConstElements x, ConstElements weight, ConstElements bias, Elements y) { y_->Run(x, weight, bias, y); }
  // dweight = dy^T x, or += with kAdd. dy has x's elements, here and below, whatever those of y are.
  void WeightGradient(ConstElements x, ConstElements dy, float* dweight, Write write) {
    dweight_->Run(dy, x, {}, dweight, write);
  }
  // dx = dy weight. REQUIRES: InputGradient::kNeeded.
  void InputGradientOf(ConstElements dy, ConstElements weight, Elements dx) { dx_->Run(dy, weight, {}, dx); }

 private:
  std::unique_ptr<MatrixProduct> y_, dweight_, dx_;
};

// The part of a backward pass that precedes its products: masks dy where the activation was kRelu, and adds its rows up
// into dbias, unless that is null. Uses the scratch memory that ReserveForActivationGradient reserved.
struct ActivationGradientArgs {
  int64_t rows = 0, channels = 0;
  Activation activation = Activation::kNone;
  ConstElements y;
  Elements dy;
  float* dbias = nullptr;
};
absl::Status ReserveForActivationGradient(CudaContext* context, int64_t rows, int64_t channels);
void ActivationGradient(CudaContext* context, const ActivationGradientArgs& args);

}  // namespace starring

#endif  // STARRING_KERNELS_CUDA_MATRIX_PRODUCT_H_
