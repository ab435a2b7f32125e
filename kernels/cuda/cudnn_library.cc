#include "kernels/cuda/cudnn_library.h"

#include <dlfcn.h>

#include <type_traits>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "kernels/cuda/library_search.h"

namespace starring {

absl::StatusOr<CudnnLibrary> CudnnLibrary::Load(const std::vector<std::string>& folders) {
  ASSIGN_OR_RETURN(void* const library, OpenGpuLibrary("libcudnn.so.9", folders), "cuDNN 9 cannot be loaded");
  CudnnLibrary table;
  const char* missing = nullptr;
  const auto find = [&](const char* name, auto* function) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
    if (*function == nullptr) missing = name;
  };
  find("cudnnGetVersion", &table.get_version);
  find("cudnnGetErrorString", &table.get_error_string);
  find("cudnnGetLastErrorString", &table.get_last_error_string);
  find("cudnnCreate", &table.create);
  find("cudnnDestroy", &table.destroy);
  find("cudnnSetStream", &table.set_stream);
  find("cudnnBackendCreateDescriptor", &table.create_descriptor);
  find("cudnnBackendDestroyDescriptor", &table.destroy_descriptor);
  find("cudnnBackendFinalize", &table.finalize);
  find("cudnnBackendSetAttribute", &table.set_attribute);
  find("cudnnBackendGetAttribute", &table.get_attribute);
  find("cudnnBackendExecute", &table.execute);
  if (missing != nullptr) return absl::UnavailableError(absl::StrCat("cuDNN has no function ", missing));
  return table;
}

}  // namespace starring
