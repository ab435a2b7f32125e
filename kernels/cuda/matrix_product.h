// One matrix product of a fixed shape, by cuBLASLt.
//
// c = activation(op(a) op(b) + bias), or c += op(a) op(b), all row-major float32: op(a) is (rows, depth), op(b) (depth,
// columns), c (rows, columns), bias (columns). Sums are float32; what the factors are rounded to is CudaMath's.
//
// Bits: cuBLASLt's heuristics choose the algorithm once, in Create, among those that add in a fixed order. Where they
// know none that also applies bias and activation, a kernel of ours does so afterwards.
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

enum class Stored { kPlain, kTransposed };  // op(a) is a, or a's transpose
enum class Write { kOverwrite, kAdd };

struct MatrixProductSpec {
  int64_t rows = 0, columns = 0, depth = 0;
  Stored a = Stored::kPlain, b = Stored::kPlain;
  Bias bias = Bias::kNone;
  Activation activation = Activation::kNone;
};

class MatrixProduct {
 public:
  // `context` outlives the result. Internal with the numbers where cuBLASLt has no algorithm.
  static absl::StatusOr<std::unique_ptr<MatrixProduct>> Create(CudaContext* context, const MatrixProductSpec& spec);
  ~MatrixProduct();

  // REQUIRES: all pointers 16-byte aligned; c overlaps nothing; kAdd only without bias and activation.
  void Run(const float* a, const float* b, const float* bias, float* c, Write write = Write::kOverwrite);

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
  bool has_epilogue_ = false;  // else AddBias follows
};

}  // namespace starring

#endif  // STARRING_KERNELS_CUDA_MATRIX_PRODUCT_H_
