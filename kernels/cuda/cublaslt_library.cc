#include "kernels/cuda/cublaslt_library.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "kernels/cuda/library_search.h"

namespace starring {

absl::StatusOr<CublasLtLibrary> CublasLtLibrary::Load(const std::vector<std::string>& folders) {
  ASSIGN_OR_RETURN(void* const library, OpenGpuLibrary(absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR), folders),
                   "cuBLASLt ", CUBLAS_VER_MAJOR, " cannot be loaded");
  CublasLtLibrary table;
  const char* missing = nullptr;
  const auto find = [&](const char* name, auto* function) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
    if (*function == nullptr) missing = name;
  };
  find("cublasLtCreate", &table.create);
  find("cublasLtDestroy", &table.destroy);
  find("cublasLtGetVersion", &table.get_version);
  find("cublasLtGetStatusString", &table.get_status_string);
  find("cublasLtMatmul", &table.matmul);
  find("cublasLtMatmulAlgoGetHeuristic", &table.matmul_algo_get_heuristic);
  find("cublasLtMatmulDescCreate", &table.matmul_desc_create);
  find("cublasLtMatmulDescDestroy", &table.matmul_desc_destroy);
  find("cublasLtMatmulDescSetAttribute", &table.matmul_desc_set_attribute);
  find("cublasLtMatmulPreferenceCreate", &table.matmul_preference_create);
  find("cublasLtMatmulPreferenceDestroy", &table.matmul_preference_destroy);
  find("cublasLtMatmulPreferenceSetAttribute", &table.matmul_preference_set_attribute);
  find("cublasLtMatrixLayoutCreate", &table.matrix_layout_create);
  find("cublasLtMatrixLayoutDestroy", &table.matrix_layout_destroy);
  if (missing != nullptr) return absl::UnavailableError(absl::StrCat("cuBLASLt has no function ", missing));
  return table;
}

}  // namespace starring
