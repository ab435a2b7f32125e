#include "common/host/library_search.h"

#include <dlfcn.h>
#include <glob.h>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace starring {
namespace {

// NVIDIA's wheels have a folder for each library, or one folder for all libraries of a CUDA version. Older wheels of
// PyTorch carry copies.
constexpr const char* kWheelFolders[] = {"nvidia/*/lib", "torch/lib"};

void AddPython(const std::string& packages, std::vector<std::string>* folders) {
  for (const char* const folder : kWheelFolders) folders->push_back(absl::StrCat(packages, "/", folder));
}

std::vector<std::string> Glob(const std::string& pattern) {
  glob_t found = {};
  const absl::Cleanup free_found = [&found] { globfree(&found); };
  // A folder that does not exist is the usual case, and no error.
  if (glob(pattern.c_str(), 0, nullptr, &found) != 0) return {};
  return {found.gl_pathv, found.gl_pathv + found.gl_pathc};
}

}  // namespace

std::vector<std::string> GpuLibraryFolders(absl::FunctionRef<const char*(const char* name)> lookup) {
  // Folders that a variable names come before those of the system: a user has chosen them.
  std::vector<std::string> folders;
  const auto value = [&](const char* name) {
    const char* const text = lookup(name);
    return std::string(text == nullptr ? "" : text);
  };
  for (const char* const name : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const std::string root = value(name); !root.empty()) folders.push_back(absl::StrCat(root, "/lib64"));
  }
  for (const char* const name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const std::string root = value(name);
    if (root.empty()) continue;
    folders.push_back(absl::StrCat(root, "/lib"));
    AddPython(absl::StrCat(root, "/lib/python3*/site-packages"), &folders);
  }
  if (const std::string home = value("HOME"); !home.empty()) {
    AddPython(absl::StrCat(home, "/.local/lib/python3*/site-packages"), &folders);
  }
  for (const char* const packages : {"/usr/local/lib/python3*/dist-packages", "/usr/local/lib/python3*/site-packages",
                                     "/usr/lib/python3/dist-packages", "/opt/conda/lib/python3*/site-packages"}) {
    AddPython(packages, &folders);
  }
  folders.push_back("/usr/local/cuda/lib64");
  return folders;
}

absl::StatusOr<void*> OpenGpuLibrary(const std::string& name, const std::vector<std::string>& folders) {
  // The loader's own search comes first: the program's RPATH, which is the bundle's folder, LD_LIBRARY_PATH and the
  // system's own folders win over our guesses. RTLD_NOW: a library with a symbol that its dependencies lack must fail
  // here, where the next folder can be tried, and not at a call.
  if (void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  // dlerror forgets its text when it is read and when dlopen is called again.
  std::string errors = dlerror();
  for (const std::string& folder : folders) {
    for (const std::string& path : Glob(absl::StrCat(folder, "/", name))) {
      if (void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
      absl::StrAppend(&errors, "; ", dlerror());
    }
  }
  return absl::UnavailableError(absl::StrCat(errors, "; looked into ", folders.size(),
                                             " more folders, of CUDA and of Python's packages: install it, or add its "
                                             "folder to LD_LIBRARY_PATH"));
}

}  // namespace starring
