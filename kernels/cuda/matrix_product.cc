// cuBLAS stores matrices column by column: our (rows, columns) is its (columns, rows). So it is asked for c^T = op(b)^T
// op(a)^T. Its first factor is our b and its second our a; nothing is transposed in memory; and its bias, which runs
// along its rows, runs along our columns.
#include "kernels/cuda/matrix_product.h"

#include "absl/cleanup/cleanup.h"
#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "kernels/cuda/bias_gradient.h"
#include "kernels/cuda/elementwise.h"

namespace starring {
namespace {

// The alignment of every pointer. The heuristics look at the alignment of a bias pointer, without reading from it.
constexpr uint32_t kAlignmentBytes = 16;

cublasComputeType_t ComputeType(CudaMath math, Element factors) {
  // The library has nothing left to round.
  if (factors != Element::kFloat32) return CUBLAS_COMPUTE_32F;
  switch (math) {
    // FAST_ allows the library to round, and does not oblige it: a product in bf16 may have the bits of tf32.
    case CudaMath::kTf32:
      return CUBLAS_COMPUTE_32F_FAST_TF32;
    case CudaMath::kBf16:
      return CUBLAS_COMPUTE_32F_FAST_16BF;
    case CudaMath::kFp32:
      break;
  }
  return CUBLAS_COMPUTE_32F;
}

cudaDataType_t TypeOf(Element element) { return element == Element::kFloat32 ? CUDA_R_32F : CUDA_R_16BF; }

absl::Status Check(const CublasLtLibrary& library, cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(what, ": ", library.get_status_string(status), " (cuBLAS status ", static_cast<int>(status), ")"));
}

std::string Text(const MatrixProductSpec& s) {
  return absl::StrCat("a product of (", s.rows, " x ", s.depth, ") by (", s.depth, " x ", s.columns, ")");
}

}  // namespace

absl::StatusOr<std::unique_ptr<MatrixProduct>> MatrixProduct::Create(CudaContext* context,
                                                                     const MatrixProductSpec& spec) {
  auto product = absl::WrapUnique(new MatrixProduct(context, spec));
  // The shape goes in front of every error: cuBLASLt's own texts do not name it.
  RETURN_IF_ERROR(product->Prepare(), Text(spec));
  return product;
}

MatrixProduct::~MatrixProduct() {
  const CublasLtLibrary& library = context_->cublaslt;
  for (const cublasLtMatrixLayout_t layout : {a_, b_, c_}) {
    if (layout != nullptr) library.matrix_layout_destroy(layout);
  }
  if (operation_ != nullptr) library.matmul_desc_destroy(operation_);
}

// First with the epilogue, then without it: not every algorithm that is deterministic also applies bias and activation.
absl::Status MatrixProduct::Prepare() {
  RETURN_IF_ERROR(Describe());
  const cublasLtEpilogue_t epilogue = Epilogue();
  RETURN_IF_ERROR(ChooseAlgorithm(epilogue, &has_epilogue_));
  if (has_epilogue_) return absl::OkStatus();
  bool found = false;
  if (epilogue != CUBLASLT_EPILOGUE_DEFAULT) RETURN_IF_ERROR(ChooseAlgorithm(CUBLASLT_EPILOGUE_DEFAULT, &found));
  return found ? absl::OkStatus() : absl::InternalError("cuBLASLt has no algorithm");
}

cublasLtEpilogue_t MatrixProduct::Epilogue() const {
  const bool relu = spec_.activation == Activation::kRelu;
  if (spec_.bias == Bias::kAdded) return relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
  return relu ? CUBLASLT_EPILOGUE_RELU : CUBLASLT_EPILOGUE_DEFAULT;
}

absl::Status MatrixProduct::Describe() {
  const CublasLtLibrary& library = context_->cublaslt;
  RETURN_IF_ERROR(Check(library,
                        library.matmul_desc_create(&operation_, ComputeType(context_->math, spec_.factors), CUDA_R_32F),
                        "cublasLtMatmulDescCreate"));
  // Describes a factor as cuBLAS sees it: row_length rows and row_count columns, which are row_length elements apart.
  const auto describe = [&](Stored stored, int64_t op_rows, int64_t op_columns,
                            cublasLtMatmulDescAttributes_t attribute, cublasLtMatrixLayout_t* layout) -> absl::Status {
    const bool plain = stored == Stored::kPlain;
    const cublasOperation_t operation = plain ? CUBLAS_OP_N : CUBLAS_OP_T;
    RETURN_IF_ERROR(Check(library,
                          library.matmul_desc_set_attribute(operation_, attribute, &operation, sizeof(operation)),
                          "cublasLtMatmulDescSetAttribute"));
    const int64_t row_length = plain ? op_columns : op_rows, row_count = plain ? op_rows : op_columns;
    return Check(library,
                 library.matrix_layout_create(layout, TypeOf(spec_.factors), static_cast<uint64_t>(row_length),
                                              static_cast<uint64_t>(row_count), row_length),
                 "cublasLtMatrixLayoutCreate");
  };
  // Its first factor (TRANSA) is our b, its second (TRANSB) our a.
  RETURN_IF_ERROR(describe(spec_.b, spec_.depth, spec_.columns, CUBLASLT_MATMUL_DESC_TRANSA, &b_));
  RETURN_IF_ERROR(describe(spec_.a, spec_.rows, spec_.depth, CUBLASLT_MATMUL_DESC_TRANSB, &a_));
  return Check(library,
               library.matrix_layout_create(&c_, TypeOf(spec_.result), static_cast<uint64_t>(spec_.columns),
                                            static_cast<uint64_t>(spec_.rows), spec_.columns),
               "cublasLtMatrixLayoutCreate");
}

absl::Status MatrixProduct::ChooseAlgorithm(cublasLtEpilogue_t epilogue, bool* found) {
  const CublasLtLibrary& library = context_->cublaslt;
  const auto set_operation = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    return Check(library, library.matmul_desc_set_attribute(operation_, attribute, &value, sizeof(value)),
                 "cublasLtMatmulDescSetAttribute");
  };
  RETURN_IF_ERROR(set_operation(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue));
  // The heuristics want a bias pointer that is as aligned as later ones: any address of the workspace will do. Without
  // a bias it must be null: cuBLASLt 13.1 finds an algorithm all the same, and then refuses every call of it.
  const void* const some_bias = (epilogue & CUBLASLT_EPILOGUE_BIAS) == 0
                                    ? nullptr
                                    : static_cast<const char*>(context_->workspace.data()) + kAlignmentBytes;
  RETURN_IF_ERROR(set_operation(CUBLASLT_MATMUL_DESC_BIAS_POINTER, some_bias));

  cublasLtMatmulPreference_t preference = nullptr;
  RETURN_IF_ERROR(Check(library, library.matmul_preference_create(&preference), "cublasLtMatmulPreferenceCreate"));
  const absl::Cleanup destroy = [&] { library.matmul_preference_destroy(preference); };
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    return Check(library, library.matmul_preference_set_attribute(preference, attribute, &value, sizeof(value)),
                 "cublasLtMatmulPreferenceSetAttribute");
  };
  // The limit is the workspace's size and not what is free, or the choice would differ from run to run.
  RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{CudaContext::kWorkspaceBytes}));
  // A sum that is split over blocks goes through the workspace, and a second kernel adds it up in order. The in-place
  // scheme adds in the order in which blocks finish, which would change the bits from run to run.
  const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions));
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    RETURN_IF_ERROR(set(attribute, kAlignmentBytes));
  }

  // One result is asked for: the heuristics' first choice. Measuring several would make the choice, and so the bits,
  // depend on what else the GPU does.
  cublasLtMatmulHeuristicResult_t result = {};
  int count = 0;
  const cublasStatus_t status = library.matmul_algo_get_heuristic(context_->cublaslt_handle, operation_, b_, a_, c_, c_,
                                                                  preference, 1, &result, &count);
  *found = status == CUBLAS_STATUS_SUCCESS && count == 1 && result.state == CUBLAS_STATUS_SUCCESS;
  if (*found) algorithm_ = result.algo;
  // That there is no algorithm is an answer, which Prepare handles.
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return absl::OkStatus();
  return Check(library, status, "cublasLtMatmulAlgoGetHeuristic");
}

void MatrixProduct::Run(ConstElements a, ConstElements b, ConstElements bias, Elements c, Write write) {
  const CublasLtLibrary& library = context_->cublaslt;
  const bool plain = spec_.bias == Bias::kNone && spec_.activation == Activation::kNone;
  CHECK(plain || write == Write::kOverwrite);
  CHECK_EQ(!bias.is_null(), spec_.bias == Bias::kAdded);
  CHECK(a.element() == spec_.factors && b.element() == spec_.factors && c.element() == spec_.result);
  CHECK(bias.is_null() || bias.element() == spec_.result);
  // The bias is an attribute of the description and not an argument of the call. The layer's parameters may be
  // elsewhere than at the last call. cuBLASLt takes the bias for one of c's elements.
  if (!bias.is_null() && has_epilogue_) {
    const void* const pointer = bias.data();
    context_->Keep(Check(
        library,
        library.matmul_desc_set_attribute(operation_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &pointer, sizeof(pointer)),
        "cublasLtMatmulDescSetAttribute"));
  }
  // Both are in host memory: cuBLASLt reads them when it is called, so a captured graph keeps their values. c is also
  // the matrix that beta multiplies.
  const float alpha = 1, beta = write == Write::kAdd ? 1 : 0;
  context_->Keep(Check(library,
                       library.matmul(context_->cublaslt_handle, operation_, &alpha, b.data(), b_, a.data(), a_, &beta,
                                      c.data(), c_, c.data(), c_, &algorithm_, context_->workspace.data(),
                                      static_cast<size_t>(context_->workspace.size_bytes()), context_->stream),
                       "cublasLtMatmul"));
  if (plain || has_epilogue_) return;
  context_->Keep(cuda::AddBias(context_->stream, {.activation = MaskOf(spec_.activation),
                                                  .rows = spec_.rows,
                                                  .channels = spec_.columns,
                                                  .bias = bias,
                                                  .y = c}),
                 "add bias");
}

absl::StatusOr<DenseProducts> DenseProducts::Create(CudaContext* context, const DenseSpec& s) {
  DenseProducts products;
  ASSIGN_OR_RETURN(products.y_, MatrixProduct::Create(context, {.rows = s.batch,
                                                                .columns = s.out,
                                                                .depth = s.in,
                                                                .b = Stored::kTransposed,
                                                                .bias = s.bias,
                                                                .activation = s.activation,
                                                                .factors = s.element,
                                                                .result = s.output}));
  // Rounded factors, and an unrounded gradient of the parameters.
  ASSIGN_OR_RETURN(
      products.dweight_,
      MatrixProduct::Create(
          context, {.rows = s.out, .columns = s.in, .depth = s.batch, .a = Stored::kTransposed, .factors = s.element}));
  // The first layer makes no dx, and needs no algorithm for it.
  if (s.input_gradient == InputGradient::kNotNeeded) return products;
  ASSIGN_OR_RETURN(
      products.dx_,
      MatrixProduct::Create(
          context, {.rows = s.batch, .columns = s.in, .depth = s.out, .factors = s.element, .result = s.element}));
  return products;
}

absl::Status ReserveForActivationGradient(CudaContext* context, int64_t rows, int64_t channels) {
  RETURN_IF_ERROR(context->counters.Reserve(context->stream, cuda::BiasGradientCounters(rows, channels)));
  return context->scratch.Reserve(static_cast<int64_t>(sizeof(float)) *
                                  cuda::BiasGradientPartialFloats(rows, channels));
}

// One kernel for both where there is a bias: dy is then read once.
void ActivationGradient(CudaContext* context, const ActivationGradientArgs& g) {
  if (g.dbias != nullptr) {
    context->Keep(cuda::BiasGradient(context->stream, {.mask = MaskOf(g.activation),
                                                       .rows = g.rows,
                                                       .channels = g.channels,
                                                       .y = g.y,
                                                       .dy = g.dy,
                                                       .dbias = g.dbias,
                                                       .partial = context->scratch.floats(),
                                                       .counters = context->counters.data()}),
                  "bias gradient");
  } else if (g.activation == Activation::kRelu) {
    context->Keep(cuda::ReluBackward(context->stream, g.y, g.dy, g.dy, g.rows * g.channels), "relu backward");
  }
}

}  // namespace starring
