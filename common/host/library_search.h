// Finds the libraries of NVIDIA that are loaded at run time, in the folders of a toolkit, of the bundle, or of Python's
// wheels.
//
// Thread safety: any thread may call any function.
#ifndef STARRING_COMMON_HOST_LIBRARY_SEARCH_H_
#define STARRING_COMMON_HOST_LIBRARY_SEARCH_H_

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace starring {

// Folders to search, as patterns of glob(7), the likely ones first: those of the toolkit that CUDA_HOME names, of the
// active virtual environment or conda environment, of the user's and the system's Python, and of /usr/local/cuda.
// `lookup` is getenv, or a test's own function.
std::vector<std::string> GpuLibraryFolders(absl::FunctionRef<const char*(const char* name)> lookup);

// Opens `name` ("libcublasLt.so.13") by dlopen, in the loader's own search path and then in each folder. The library
// stays loaded until the process ends. Unavailable, with the loader's text for each file that was found, if none can be
// loaded.
[[nodiscard]] absl::StatusOr<void*> OpenGpuLibrary(const std::string& name, const std::vector<std::string>& folders);

}  // namespace starring

#endif  // STARRING_COMMON_HOST_LIBRARY_SEARCH_H_
