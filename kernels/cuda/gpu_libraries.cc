#include "kernels/cuda/gpu_libraries.h"

#include <dlfcn.h>

#include <type_traits>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/host/library_search.h"

namespace starring {
namespace {

// Looks functions up in one library and remembers a name that it lacks: a table with a null pointer would crash at the
// first call, far from the cause.
class Functions {
 public:
  Functions(void* library, const char* name) : library_(library), name_(name) {}

  template <typename Function>
  void Find(const char* function_name, Function* function) {
    // POSIX lets a pointer from dlsym be cast to a function's type; for cuBLASLt the type is that of the header's
    // declaration, for cuDNN that of our own (cudnn_interface.h).
    *function = reinterpret_cast<Function>(dlsym(library_, function_name));
    if (*function == nullptr) missing_ = function_name;
  }
  absl::Status status() const {
    return missing_ == nullptr ? absl::OkStatus()
                               : absl::UnavailableError(absl::StrCat(name_, " has no function ", missing_));
  }

 private:
  void* const library_;
  const char* const name_;
  const char* missing_ = nullptr;
};

}  // namespace

absl::StatusOr<CublasLtLibrary> CublasLtLibrary::Load(const std::vector<std::string>& folders) {
  // The major version must be that of the headers, whose structs and enumerations are compiled into this build.
  ASSIGN_OR_RETURN(void* const library, OpenGpuLibrary(absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR), folders),
                   "cuBLASLt ", CUBLAS_VER_MAJOR, " cannot be loaded");
  CublasLtLibrary table;
  Functions functions(library, "cuBLASLt");
  functions.Find("cublasLtCreate", &table.create);
  functions.Find("cublasLtDestroy", &table.destroy);
  functions.Find("cublasLtGetVersion", &table.get_version);
  functions.Find("cublasLtGetStatusString", &table.get_status_string);
  functions.Find("cublasLtMatmul", &table.matmul);
  functions.Find("cublasLtMatmulAlgoGetHeuristic", &table.matmul_algo_get_heuristic);
  functions.Find("cublasLtMatmulDescCreate", &table.matmul_desc_create);
  functions.Find("cublasLtMatmulDescDestroy", &table.matmul_desc_destroy);
  functions.Find("cublasLtMatmulDescSetAttribute", &table.matmul_desc_set_attribute);
  functions.Find("cublasLtMatmulPreferenceCreate", &table.matmul_preference_create);
  functions.Find("cublasLtMatmulPreferenceDestroy", &table.matmul_preference_destroy);
  functions.Find("cublasLtMatmulPreferenceSetAttribute", &table.matmul_preference_set_attribute);
  functions.Find("cublasLtMatrixLayoutCreate", &table.matrix_layout_create);
  functions.Find("cublasLtMatrixLayoutDestroy", &table.matrix_layout_destroy);
  // A library that is older than a function that we use is refused here, with that function's name.
  RETURN_IF_ERROR(functions.status());
  return table;
}

absl::StatusOr<CudnnLibrary> CudnnLibrary::Load(const std::vector<std::string>& folders) {
  // The numbers of cudnn_interface.h are those of cuDNN 9.
  ASSIGN_OR_RETURN(void* const library, OpenGpuLibrary("libcudnn.so.9", folders), "cuDNN 9 cannot be loaded");
  CudnnLibrary table;
  Functions functions(library, "cuDNN");
  functions.Find("cudnnGetVersion", &table.get_version);
  functions.Find("cudnnGetErrorString", &table.get_error_string);
  functions.Find("cudnnGetLastErrorString", &table.get_last_error_string);
  functions.Find("cudnnCreate", &table.create);
  functions.Find("cudnnDestroy", &table.destroy);
  functions.Find("cudnnSetStream", &table.set_stream);
  functions.Find("cudnnBackendCreateDescriptor", &table.create_descriptor);
  functions.Find("cudnnBackendDestroyDescriptor", &table.destroy_descriptor);
  functions.Find("cudnnBackendFinalize", &table.finalize);
  functions.Find("cudnnBackendSetAttribute", &table.set_attribute);
  functions.Find("cudnnBackendGetAttribute", &table.get_attribute);
  functions.Find("cudnnBackendExecute", &table.execute);
  RETURN_IF_ERROR(functions.status());
  return table;
}

absl::StatusOr<CudaDriverLibrary> CudaDriverLibrary::Load() {
  // The driver installs the library where the loader looks, so there are no folders to search.
  void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) return absl::UnavailableError(absl::StrCat("the CUDA driver cannot be loaded: ", dlerror()));
  CudaDriverLibrary table;
  Functions functions(library, "the CUDA driver");
  // The header's macros choose these versions, whose types the members have.
  functions.Find("cuDeviceGet", &table.device_get);
  functions.Find("cuDeviceGetAttribute", &table.device_get_attribute);
  functions.Find("cuGetErrorName", &table.get_error_name);
  functions.Find("cuGetErrorString", &table.get_error_string);
  functions.Find("cuStreamBatchMemOp_v2", &table.stream_batch_mem_op);
  RETURN_IF_ERROR(functions.status());
  return table;
}

}  // namespace starring
