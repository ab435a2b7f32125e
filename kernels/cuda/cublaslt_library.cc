#include "kernels/cuda/cublaslt_library.h"

#include <dlfcn.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace starring {
namespace {

// In the loader's search path, then where the toolkit's installer puts it.
void* Open(std::string* error) {
  const std::string name = absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR);
  for (const std::string& path : {name, absl::StrCat("/usr/local/cuda/lib64/", name)}) {
    if (void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    absl::StrAppend(error, error->empty() ? "" : "; ", dlerror());
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<CublasLtLibrary> CublasLtLibrary::Load() {
  std::string error;
  void* const library = Open(&error);
  if (library == nullptr) {
    return absl::UnavailableError(absl::StrCat("cuBLASLt ", CUBLAS_VER_MAJOR, " cannot be loaded: ", error,
                                               ": install it or add its folder to LD_LIBRARY_PATH"));
  }
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
