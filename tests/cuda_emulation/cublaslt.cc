#include <cublasLt.h>

#include <cstring>
#include <limits>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/gpu_libraries.h"
#include "tests/cuda_emulation/emulated_gpu.h"
#include "tests/cuda_emulation/include/stored.h"

struct CublasLtEmulatedHandle {};
struct CublasLtEmulatedOperation {
  cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cudaDataType_t scale = CUDA_R_32F;
};
struct CublasLtEmulatedLayout {
  int64_t rows, columns, leading_dimension;
  cudaDataType_t type;
  int64_t bytes() const { return ElementBytes() * rows * columns; }
  int64_t ElementBytes() const { return type == CUDA_R_32F ? 4 : 2; }
};
struct CublasLtEmulatedPreference {
  uint32_t alignment_bytes[4] = {256, 256, 256, 256};  // what cuBLASLt assumes unless it is told otherwise
};

using starring::cuda_emulation::Gpu;
using starring::cuda_emulation::Stored;

namespace {

// The shape of op(m).
struct Shape {
  int64_t rows, columns;
};
Shape After(cublasOperation_t operation, const CublasLtEmulatedLayout& m) {
  return operation == CUBLAS_OP_N ? Shape{m.rows, m.columns} : Shape{m.columns, m.rows};
}

bool Fit(const CublasLtEmulatedOperation& operation, const CublasLtEmulatedLayout& a, const CublasLtEmulatedLayout& b,
         const CublasLtEmulatedLayout& d) {
  const Shape left = After(operation.a, a), right = After(operation.b, b);
  const bool types = a.type == b.type && (d.type == CUDA_R_32F || d.type == a.type) && operation.scale == CUDA_R_32F &&
                     (operation.compute == CUBLAS_COMPUTE_32F || a.type == CUDA_R_32F);
  return types && left.rows == d.rows && right.columns == d.columns && left.columns == right.rows &&
         a.leading_dimension >= a.rows && b.leading_dimension >= b.rows && d.leading_dimension >= d.rows;
}

bool Aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

struct Product {
  CublasLtEmulatedOperation operation;
  CublasLtEmulatedLayout a_layout, b_layout, d_layout;
  const void* a_memory;
  const void* b_memory;
  void* d_memory;
  float alpha, beta;

  int64_t WrittenBytes() const { return d_layout.bytes(); }
  int64_t ReadBytes() const { return a_layout.bytes() + b_layout.bytes() + (beta != 0 ? WrittenBytes() : 0); }

  // All of the memory from the matrix's first element to its last.
  static Stored In(const void* memory, const CublasLtEmulatedLayout& m) {
    return {memory, (m.columns - 1) * m.leading_dimension + m.rows, m.type == CUDA_R_16BF};
  }

  void Run() const {
    const Stored a_stored = In(a_memory, a_layout), b_stored = In(b_memory, b_layout),
                 d_stored = In(d_memory, d_layout);
    const bool adds_bias = (operation.epilogue & CUBLASLT_EPILOGUE_BIAS) != 0;
    const Stored bias(operation.bias, adds_bias ? d_layout.rows : 0, d_layout.type == CUDA_R_16BF);
    const float* const a = a_stored.floats();
    const float* const b = b_stored.floats();
    const int64_t rows = d_layout.rows, columns = d_layout.columns;
    const int64_t depth = After(operation.a, a_layout).columns;
    const bool plain_a = operation.a == CUBLAS_OP_N, plain_b = operation.b == CUBLAS_OP_N;
    const bool gives_nans = starring::cuda_emulation::GivesNans();
    std::vector<double> sums(static_cast<size_t>(rows));
    for (int64_t j = 0; j < columns; ++j) {
      std::fill(sums.begin(), sums.end(), 0.0);
      for (int64_t k = 0; k < depth; ++k) {
        const double right = plain_b ? b[j * b_layout.leading_dimension + k] : b[k * b_layout.leading_dimension + j];
        const int64_t step = plain_a ? 1 : a_layout.leading_dimension;
        const float* const left = plain_a ? a + k * a_layout.leading_dimension : a + k;
        for (int64_t i = 0; i < rows; ++i) sums[static_cast<size_t>(i)] += left[i * step] * right;
      }
      const int64_t column = j * d_layout.leading_dimension;
      for (int64_t i = 0; i < rows; ++i) {
        double v = gives_nans ? std::numeric_limits<double>::quiet_NaN() : alpha * sums[static_cast<size_t>(i)];
        if (beta != 0) v += double{beta} * d_stored.floats()[column + i];
        if (adds_bias) v += bias.floats()[i];
        if ((operation.epilogue & CUBLASLT_EPILOGUE_RELU) != 0 && v < 0) v = 0;
        d_stored.Write(d_memory, column + i, static_cast<float>(v));
      }
    }
  }
};

}  // namespace

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new CublasLtEmulatedHandle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion() { return 130000; }

const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "unknown";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  *operation = new CublasLtEmulatedOperation{.compute = compute, .scale = scale};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  delete operation;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t size_bytes) {
  const auto set = [&](auto* field) {
    if (size_bytes != sizeof(*field)) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(field, value, size_bytes);
    return CUBLAS_STATUS_SUCCESS;
  };
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(&operation->a);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(&operation->b);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return set(&operation->epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return set(&operation->bias);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type, uint64_t rows,
                                          uint64_t columns, int64_t leading_dimension) {
  *layout =
      new CublasLtEmulatedLayout{static_cast<int64_t>(rows), static_cast<int64_t>(columns), leading_dimension, type};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new CublasLtEmulatedPreference;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t size_bytes) {
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
    return size_bytes == sizeof(uint64_t) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
  }
  if (size_bytes != sizeof(uint32_t)) return CUBLAS_STATUS_INVALID_VALUE;
  if (attribute >= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES) {
    std::memcpy(&preference->alignment_bytes[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value,
                size_bytes);
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results, int* count) {
  *count = 0;
  if (wanted < 1 || c != d || !Fit(*operation, *a, *b, *d)) return CUBLAS_STATUS_INVALID_VALUE;
  for (const uint32_t bytes : preference->alignment_bytes) {
    if (bytes != 16) return CUBLAS_STATUS_INVALID_VALUE;  // Matmul below requires it
  }
  if (operation->epilogue != CUBLASLT_EPILOGUE_DEFAULT && !Gpu().has_epilogues) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  results[0] = {.algo = {.chosen_for = static_cast<uint64_t>(operation->epilogue)},
                .workspaceSize = 0,
                .state = CUBLAS_STATUS_SUCCESS};
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void*, size_t,
                              cudaStream_t stream) {
  const bool adds_bias = (operation->epilogue & CUBLASLT_EPILOGUE_BIAS) != 0;
  if (c != d || c_layout != d_layout || !Fit(*operation, *a_layout, *b_layout, *d_layout) || !Aligned(a) ||
      !Aligned(b) || !Aligned(d) || (adds_bias ? !Aligned(operation->bias) : operation->bias != nullptr) ||
      algorithm->chosen_for != static_cast<uint64_t>(operation->epilogue)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const Product product = {.operation = *operation,
                           .a_layout = *a_layout,
                           .b_layout = *b_layout,
                           .d_layout = *d_layout,
                           .a_memory = a,
                           .b_memory = b,
                           .d_memory = d,
                           .alpha = *static_cast<const float*>(alpha),
                           .beta = *static_cast<const float*>(beta)};
  starring::cuda_emulation::Enqueue(stream, [product] {
    if (!Gpu().counts_bytes) return product.Run();
    starring::cuda_emulation::AddTraffic(product.ReadBytes(), product.WrittenBytes());
  });
  return CUBLAS_STATUS_SUCCESS;
}

namespace starring {

absl::StatusOr<CublasLtLibrary> CublasLtLibrary::Load(const std::vector<std::string>&) {
  return CublasLtLibrary{.create = cublasLtCreate,
                         .destroy = cublasLtDestroy,
                         .get_version = cublasLtGetVersion,
                         .get_status_string = cublasLtGetStatusString,
                         .matmul = cublasLtMatmul,
                         .matmul_algo_get_heuristic = cublasLtMatmulAlgoGetHeuristic,
                         .matmul_desc_create = cublasLtMatmulDescCreate,
                         .matmul_desc_destroy = cublasLtMatmulDescDestroy,
                         .matmul_desc_set_attribute = cublasLtMatmulDescSetAttribute,
                         .matmul_preference_create = cublasLtMatmulPreferenceCreate,
                         .matmul_preference_destroy = cublasLtMatmulPreferenceDestroy,
                         .matmul_preference_set_attribute = cublasLtMatmulPreferenceSetAttribute,
                         .matrix_layout_create = cublasLtMatrixLayoutCreate,
                         .matrix_layout_destroy = cublasLtMatrixLayoutDestroy};
}

}  // namespace starring
