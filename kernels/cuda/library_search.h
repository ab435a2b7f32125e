// Finds NVIDIA's libraries that are loaded at run time, where the toolkit, the bundle, or Python's wheels keep them.
//
// Thread safety: pure but for dlopen; any thread.
#ifndef STARRING_KERNELS_CUDA_LIBRARY_SEARCH_H_
#define STARRING_KERNELS_CUDA_LIBRARY_SEARCH_H_

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace starring {

// Folders as patterns of glob(7), the likely ones first: of the toolkit that CUDA_HOME names, of the active virtual
// environment or conda's, of the person's and the system's Python, of /usr/local/cuda. `lookup` is getenv, or a test's.
std::vector<std::string> GpuLibraryFolders(absl::FunctionRef<const char*(const char* name)> lookup);

// dlopen of `name` ("libcublasLt.so.13") in the loader's own search path, then in each folder. The library stays loaded
// until the process ends. Unavailable, with what the loader said of each that was there, if none can be loaded.
absl::StatusOr<void*> OpenGpuLibrary(const std::string& name, const std::vector<std::string>& folders);

}  // namespace starring

#endif  // STARRING_KERNELS_CUDA_LIBRARY_SEARCH_H_
