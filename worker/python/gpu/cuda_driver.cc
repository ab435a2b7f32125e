#include "worker/python/gpu/cuda_driver.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace starring {
namespace {

// Remembers a name that the library lacks: a table with a null pointer would crash at the first call, far from the
// cause.
class Functions {
 public:
  explicit Functions(void* library) : library_(library) {}

  template <typename Function>
  void Find(const char* name, Function* function) {
    // POSIX lets a pointer from dlsym be cast to a function's type.
    *function = reinterpret_cast<Function>(dlsym(library_, name));
    if (*function == nullptr) missing_ = name;
  }
  absl::Status status() const {
    return missing_ == nullptr ? absl::OkStatus()
                               : absl::UnavailableError(absl::StrCat("the CUDA driver has no function ", missing_));
  }

 private:
  void* const library_;
  const char* missing_ = nullptr;
};

}  // namespace

absl::StatusOr<CudaDriver> CudaDriver::Load() {
  // The driver installs the library where the loader looks. It stays loaded until the process ends.
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::UnavailableError(absl::StrCat("the CUDA driver cannot be loaded: ", dlerror()));
  CudaDriver driver;
  Functions functions(library);
  // The suffixes are those that the macros of cuda.h add.
  functions.Find("cuInit", &driver.init);
  functions.Find("cuDeviceGet", &driver.device_get);
  functions.Find("cuGetErrorName", &driver.get_error_name);
  functions.Find("cuGetErrorString", &driver.get_error_string);
  functions.Find("cuDevicePrimaryCtxRetain", &driver.primary_context_retain);
  functions.Find("cuDevicePrimaryCtxRelease_v2", &driver.primary_context_release);
  functions.Find("cuCtxSetCurrent", &driver.context_set_current);
  functions.Find("cuCtxPushCurrent_v2", &driver.context_push);
  functions.Find("cuCtxPopCurrent_v2", &driver.context_pop);
  functions.Find("cuModuleLoadData", &driver.module_load);
  functions.Find("cuModuleUnload", &driver.module_unload);
  functions.Find("cuModuleGetFunction", &driver.module_get_function);
  functions.Find("cuLaunchKernel", &driver.launch);
  functions.Find("cuMemAlloc_v2", &driver.allocate);
  functions.Find("cuMemFree_v2", &driver.free);
  functions.Find("cuIpcGetMemHandle", &driver.ipc_export);
  functions.Find("cuIpcOpenMemHandle_v2", &driver.ipc_open);
  functions.Find("cuIpcCloseMemHandle", &driver.ipc_close);
  functions.Find("cuMemcpyDtoDAsync_v2", &driver.copy_on_device);
  functions.Find("cuMemcpyHtoDAsync_v2", &driver.copy_to_device);
  functions.Find("cuMemcpyDtoHAsync_v2", &driver.copy_to_host);
  functions.Find("cuStreamCreate", &driver.stream_create);
  functions.Find("cuStreamDestroy_v2", &driver.stream_destroy);
  functions.Find("cuStreamSynchronize", &driver.stream_synchronize);
  functions.Find("cuStreamWaitEvent", &driver.stream_wait_event);
  functions.Find("cuEventCreate", &driver.event_create);
  functions.Find("cuEventDestroy_v2", &driver.event_destroy);
  functions.Find("cuEventRecord", &driver.event_record);
  functions.Find("cuEventSynchronize", &driver.event_synchronize);
  RETURN_IF_ERROR(functions.status());
  return driver;
}

absl::Status CudaDriver::StatusOf(Result result, const char* what) const {
  if (result == 0) return absl::OkStatus();
  const char* name = nullptr;
  const char* text = nullptr;
  // Numbers that this driver does not know have neither.
  if (get_error_name(result, &name) != 0 || name == nullptr) name = "unknown";
  if (get_error_string(result, &text) != 0 || text == nullptr) text = "unknown error";
  return absl::InternalError(absl::StrCat(what, " failed: ", name, " (", result, "): ", text));
}

}  // namespace starring
