#include "common/transport/mpi/mpi_library.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/host/own_program.h"

namespace starring {
namespace {

// MPICH's Debian package has its own name. The others promise libmpi.so.12.
constexpr const char* kOpenMpiNames[] = {"libmpi.so.40"};
constexpr const char* kMpichNames[] = {"libmpi.so.12", "libmpich.so.12"};

// Programs that start ranks and are installed beside the library.
constexpr std::string_view kStarters[] = {
    "mpirun", "mpiexec",       "orterun",      "orted",         "prterun",         "prted",
    "prte",   "mpiexec.hydra", "mpirun.mpich", "mpiexec.mpich", "hydra_pmi_proxy", "hydra_bstrap_proxy"};
constexpr int kAncestorsMax = 3;  // a shell or a wrapper may come between

bool Exists(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0;
}

bool IsFolder(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

// "/opt/mpi" for "/opt/mpi/bin/mpirun". Empty for a path with fewer folders.
std::string PrefixOf(const std::string& program) {
  const size_t name = program.rfind('/');
  if (name == std::string::npos || name == 0) return "";
  const size_t folder = program.rfind('/', name - 1);
  return folder == std::string::npos ? "" : program.substr(0, folder);
}

std::string RealPath(const std::string& path) {
  char real[PATH_MAX];
  return realpath(path.c_str(), real) == nullptr ? "" : real;
}

// The process that started process `id`; 0 if the system does not say.
int ParentOfProcess(int id) {
  std::ifstream status(absl::StrCat("/proc/", id, "/status"));
  for (std::string line; std::getline(status, line);) {
    int parent = 0;
    if (line.starts_with("PPid:") && absl::SimpleAtoi(line.substr(5), &parent)) return parent;
  }
  return 0;
}

// The installation of the program that has started this process, if it is one that starts ranks.
std::string PrefixOfStarter() {
  // Process 1 adopts orphans, and says nothing about their launcher.
  int process = getppid();
  for (int i = 0; i < kAncestorsMax && process > 1; ++i, process = ParentOfProcess(process)) {
    const std::string program = ProgramOf(RealPath(absl::StrCat("/proc/", process, "/exe")));
    if (std::ranges::find(kStarters, program.substr(program.rfind('/') + 1)) != std::end(kStarters)) {
      return PrefixOf(program);
    }
  }
  return "";
}

std::vector<std::string> OtherFolders(EnvironmentLookup lookup) {
  std::vector<std::string> prefixes;
  for (const char* const name : {"I_MPI_ROOT", "MPI_ROOT", "MPI_HOME"}) {
    if (const char* const value = lookup(name); value != nullptr) prefixes.emplace_back(value);
  }
  const char* const path = lookup("PATH");
  for (const absl::string_view folder : absl::StrSplit(path == nullptr ? "" : path, ':', absl::SkipEmpty())) {
    for (const char* const program : {"mpiexec", "mpirun"}) {
      const std::string prefix = PrefixOf(RealPath(absl::StrCat(std::string(folder), "/", program)));
      if (!prefix.empty()) prefixes.push_back(prefix);
    }
  }
  std::vector<std::string> folders;
  for (const std::string& prefix : prefixes) {
    for (const std::string& one : LibraryFolders(prefix)) {
      if (std::ranges::find(folders, one) == folders.end()) folders.push_back(one);
    }
  }
  return folders;
}

template <class Function>
bool Find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  return function != nullptr;
}

// The handles are the addresses of these objects.
bool FindHandles(void* library, MpiHandles<OpenMpiAbi>& handles) {
  handles = {.world = dlsym(library, "ompi_mpi_comm_world"),
             .byte = dlsym(library, "ompi_mpi_byte"),
             .float32 = dlsym(library, "ompi_mpi_float"),
             .sum = dlsym(library, "ompi_mpi_op_sum"),
             .request_null = dlsym(library, "ompi_request_null"),
             .message_null = dlsym(library, "ompi_message_null"),
             .errors_return = dlsym(library, "ompi_mpi_errors_return"),
             .info_null = dlsym(library, "ompi_mpi_info_null")};
  const void* const all[] = {handles.world,        handles.byte,         handles.float32,       handles.sum,
                             handles.request_null, handles.message_null, handles.errors_return, handles.info_null};
  return std::ranges::find(all, nullptr) == std::end(all);
}

// The handles are numbers, which all libraries with MPICH's ABI share.
bool FindHandles(void* /*library*/, MpiHandles<MpichAbi>& handles) {
  // The values are those of mpi.h of MPICH.
  handles = {.world = 0x44000000,
             .byte = 0x4c00010d,
             .float32 = 0x4c00040a,
             .sum = 0x58000003,
             .request_null = 0x2c000000,
             .message_null = 0x2c000000,
             .errors_return = 0x54000001,
             .info_null = 0x1c000000};
  return true;
}

template <class Abi>
absl::StatusOr<MpiLibrary> Fill(void* library, const std::string& file) {
  MpiCalls<Abi> calls;
  std::vector<std::string> missing;
#define STARRING_MPI_FIND(name, parameters) \
  if (!Find(library, "MPI_" #name, calls.mpi.name)) missing.emplace_back("MPI_" #name);
  STARRING_MPI_FUNCTIONS(STARRING_MPI_FIND)
#undef STARRING_MPI_FIND
  // Not every library has this one, and a job on CPUs does without it.
  Find(library, "MPIX_Query_cuda_support", calls.mpi.query_cuda_support);
  if (!FindHandles(library, calls.handles)) missing.emplace_back("handles of Open MPI");
  if (missing.empty()) return MpiLibrary{.file = file, .calls = calls};
  return absl::InvalidArgumentError(
      absl::StrCat(file, " is no MPI library that can be used: it has no ", absl::StrJoin(missing, ", ")));
}

// Only Open MPI's handles are objects.
absl::StatusOr<MpiLibrary> Fill(void* library, const std::string& file) {
  if (dlsym(library, "ompi_mpi_comm_world") != nullptr) return Fill<OpenMpiAbi>(library, file);
  return Fill<MpichAbi>(library, file);
}

// The loader may have found a bare name in any folder; dladdr says in which.
std::string FileOf(void* library) {
  Dl_info info;
  void* const function = dlsym(library, "MPI_Init_thread");
  return function != nullptr && dladdr(function, &info) != 0 ? info.dli_fname : "";
}

// Tries files one after the other, and keeps the reasons.
class Search {
 public:
  // `name` is a path, or a name that the loader looks for.
  bool Try(const std::string& name) {
    // Open MPI's plugins find the library's functions among the global ones. Its threads run until the process ends, so
    // it is never closed.
    void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) {
      const char* const reason = dlerror();
      // A name that is nowhere is no reason.
      if (name.find('/') != std::string::npos) reasons_.push_back(reason == nullptr ? name : reason);
      return false;
    }
    absl::StatusOr<MpiLibrary> filled = Fill(library, FileOf(library).empty() ? name : FileOf(library));
    if (!filled.ok()) {
      reasons_.emplace_back(filled.status().message());
      return false;
    }
    found_ = *std::move(filled);
    return true;
  }
  bool TryFolder(const std::string& folder, MpiFamily family) {
    const std::span<const char* const> names =
        family == MpiFamily::kOpenMpi ? std::span<const char* const>(kOpenMpiNames) : kMpichNames;
    return std::ranges::any_of(names, [&](const char* name) {
      const std::string file = absl::StrCat(folder, "/", name);
      return Exists(file) && Try(file);
    });
  }
  bool TryNames(MpiFamily family) {
    const std::span<const char* const> names =
        family == MpiFamily::kOpenMpi ? std::span<const char* const>(kOpenMpiNames) : kMpichNames;
    return std::ranges::any_of(names, [&](const char* name) { return Try(name); });
  }
  MpiLibrary Take() { return *std::move(found_); }
  bool has_reasons() const { return !reasons_.empty(); }
  std::string Reasons() const { return reasons_.empty() ? "none was found" : absl::StrJoin(reasons_, "; "); }

 private:
  std::optional<MpiLibrary> found_;
  std::vector<std::string> reasons_;
};

absl::StatusOr<MpiLibrary> LoadFrom(const std::string& path, Launcher launcher) {
  Search search;
  if (!IsFolder(path)) {
    if (search.Try(path)) return search.Take();
  } else {
    std::vector<std::string> folders = LibraryFolders(path);
    folders.insert(folders.begin(), path);
    for (const MpiFamily family : MpiFamilies("auto", launcher, getenv)) {
      const auto try_folder = [&](const std::string& folder) { return search.TryFolder(folder, family); };
      if (std::ranges::any_of(folders, try_folder)) return search.Take();
    }
  }
  return absl::NotFoundError(absl::StrCat("--mpi=", path, " cannot be loaded: ", search.Reasons()));
}

const char* NamesOf(MpiFamily family) {
  return family == MpiFamily::kOpenMpi ? "Open MPI's libmpi.so.40" : "MPICH's libmpi.so.12 or libmpich.so.12";
}

}  // namespace

std::vector<std::string> LibraryFolders(const std::string& prefix) {
  std::vector<std::string> folders;
  // The last two are Debian's and Intel's.
  for (const char* const below : {"/lib", "/lib64", "/lib/x86_64-linux-gnu", "/lib/release"}) {
    if (std::string folder = prefix + below; IsFolder(folder)) folders.push_back(std::move(folder));
  }
  return folders;
}

std::vector<MpiFamily> MpiFamilies(const std::string& asked, Launcher launcher, EnvironmentLookup lookup) {
  if (asked == "openmpi" || (asked == "auto" && launcher == Launcher::kOpenMpi)) return {MpiFamily::kOpenMpi};
  if (asked == "mpich" || (asked == "auto" && launcher == Launcher::kPmi)) return {MpiFamily::kMpich};
  // Slurm starts ranks by PMI for MPICH, and by PMIx for Open MPI.
  if (launcher == Launcher::kSlurm && lookup("PMIX_RANK") == nullptr && lookup("PMI_RANK") != nullptr) {
    return {MpiFamily::kMpich, MpiFamily::kOpenMpi};
  }
  return {MpiFamily::kOpenMpi, MpiFamily::kMpich};
}

absl::StatusOr<MpiLibrary> LoadMpiLibrary(const std::string& asked, Launcher launcher) {
  if (asked.find('/') != std::string::npos) return LoadFrom(asked, launcher);
  // A tool that is preloaded has some of the functions, a library that is linked has all.
  if (absl::StatusOr<MpiLibrary> linked = Fill(RTLD_DEFAULT, ""); linked.ok()) return linked;
  const std::vector<MpiFamily> families = MpiFamilies(asked, launcher, getenv);
  const std::vector<std::string> of_starter = LibraryFolders(PrefixOfStarter());
  const std::vector<std::string> others = OtherFolders(getenv);
  Search search;
  std::vector<std::string> names;
  for (const MpiFamily family : families) {
    const auto try_folder = [&](const std::string& folder) { return search.TryFolder(folder, family); };
    Search beside;
    if (std::ranges::any_of(of_starter, [&](const std::string& one) { return beside.TryFolder(one, family); })) {
      return beside.Take();
    }
    // With another library than the launcher's own a job may train, and nobody would know of the library that fails.
    if (beside.has_reasons()) {
      return absl::NotFoundError(absl::StrCat("the MPI of this job's launcher cannot be loaded: ", beside.Reasons(),
                                              ". Name another library by --mpi=PATH, or use --transport=tcp, which "
                                              "needs none"));
    }
    if (search.TryNames(family) || std::ranges::any_of(others, try_folder)) return search.Take();
    names.emplace_back(NamesOf(family));
  }
  return absl::NotFoundError(absl::StrCat(
      "no MPI can be loaded (", absl::StrJoin(names, ", "), "): ", search.Reasons(),
      ". Load the site's module, install Open MPI (Debian: openmpi-bin), name the library by --mpi=PATH, or use "
      "--transport=tcp, which needs none"));
}

std::string MpiLibrary::Name() const {
  char text[kMpiVersionBytesMax] = "";
  int length = 0;
  std::visit([&](const auto& of) { of.mpi.Get_library_version(text, &length); }, calls);
  // "Open MPI v4.1.4, package: ...", "MPICH Version:\t4.0.2\n...", "Intel(R) MPI Library 2021.19 for Linux* OS\n".
  std::string line = std::vector<std::string>(
      absl::StrSplit(std::string(text, static_cast<size_t>(length)), absl::MaxSplits(absl::ByAnyChar("\n,"), 1)))[0];
  line = absl::StrReplaceAll(line, {{" Version:", ""}, {"\t", " "}, {"MPI v", "MPI "}});
  return absl::StrJoin(absl::StrSplit(line, ' ', absl::SkipWhitespace()), " ");
}

}  // namespace starring
