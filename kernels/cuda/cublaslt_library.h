// The one door to cuBLASLt: its functions, loaded when a device is created.
//
// By dlopen, not by the linker: a program that needed libcublasLt.so to start would not start on a machine without a
// GPU, where nobody installs 500 MB of it. And cuBLASLt alone, without cuBLAS: it has all products we compute, and
// workspace, algorithm and epilogue are arguments there.
//
// Thread safety: immutable after Load.
#ifndef STARRING_KERNELS_CUDA_CUBLASLT_LIBRARY_H_
#define STARRING_KERNELS_CUDA_CUBLASLT_LIBRARY_H_

#include <cublasLt.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace starring {

struct CublasLtLibrary {
  // Unavailable with the loader's text where the library of the headers' major version cannot be loaded: it is looked
  // for as OpenGpuLibrary says. The library stays loaded until the process ends.
  static absl::StatusOr<CublasLtLibrary> Load(const std::vector<std::string>& folders);

  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtGetVersion) get_version = nullptr;
  decltype(&cublasLtGetStatusString) get_status_string = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) matmul_algo_get_heuristic = nullptr;
  decltype(&cublasLtMatmulDescCreate) matmul_desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) matmul_desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) matmul_desc_set_attribute = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) matmul_preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) matmul_preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) matmul_preference_set_attribute = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) matrix_layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) matrix_layout_destroy = nullptr;
};

}  // namespace starring

#endif  // STARRING_KERNELS_CUDA_CUBLASLT_LIBRARY_H_
