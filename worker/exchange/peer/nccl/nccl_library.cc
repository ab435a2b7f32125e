#include "worker/exchange/peer/nccl/nccl_library.h"

#include <dlfcn.h>

#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/host/library_search.h"

namespace starring {

std::string nccl::VersionText(int version) {
  // Releases before 2.9 have one digit less for the minor number.
  const int major_unit = version < 10'000 ? 1000 : 10'000;
  return absl::StrCat(version / major_unit, ".", version % major_unit / 100, ".", version % 100);
}

absl::StatusOr<NcclLibrary> NcclLibrary::Load(const std::vector<std::string>& folders) {
  ASSIGN_OR_RETURN(void* const library, OpenGpuLibrary("libnccl.so.2", folders), "NCCL cannot be loaded");
  absl::Status status;
  const auto find = [&](const char* name, auto* function) {
    // POSIX lets a pointer from dlsym be cast to a function's type.
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
    if (*function == nullptr) status.Update(absl::UnavailableError(absl::StrCat("NCCL has no function ", name)));
  };
  NcclLibrary table;
  nccl::Result (*get_version)(int* version) = nullptr;
  find("ncclGetVersion", &get_version);
  RETURN_IF_ERROR(status);
  get_version(&table.version);
  // The version comes before the functions: an old release lacks some of them, and their names help no one.
  if (table.version < nccl::kVersionMin) {
    return absl::UnavailableError(absl::StrCat("NCCL ", nccl::VersionText(table.version), " is found, ",
                                               nccl::VersionText(nccl::kVersionMin), " or newer is expected"));
  }
  find("ncclGetUniqueId", &table.get_unique_id);
  find("ncclCommInitRankConfig", &table.comm_init_rank_config);
  find("ncclCommGetAsyncError", &table.comm_get_async_error);
  find("ncclCommAbort", &table.comm_abort);
  find("ncclAllReduce", &table.all_reduce);
  find("ncclGetErrorString", &table.get_error_string);
  find("ncclGetLastError", &table.get_last_error);
  RETURN_IF_ERROR(status);
  return table;
}

}  // namespace starring
