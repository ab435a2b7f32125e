#include "worker/data/files/data_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>

#include "absl/strings/str_format.h"
#include "common/host/machine_limits.h"

namespace starring {
namespace {

// The bytes of address space that ulimit -v still grants this process.
int64_t AddressBytesLeft() {
  constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  rlimit limit = {};
  int64_t pages = 0;
  // The first number is the process's address space in pages, which RLIMIT_AS limits.
  std::ifstream sizes("/proc/self/statm");
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || !(sizes >> pages)) return kNoLimit;
  return std::max<int64_t>(
      0, static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, kNoLimit)) - pages * sysconf(_SC_PAGESIZE));
}

}  // namespace

absl::Status CheckDataFits(const std::string& path, int64_t bytes, const std::string& root) {
  constexpr double kMega = 1e6;
  const int64_t addresses = AddressBytesLeft();
  if (bytes > addresses) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%s needs %.1f MB of memory, and its limit grants this process %.1f MB more: raise ulimit -v, "
                        "or use fewer data",
                        path, static_cast<double>(bytes) / kMega, static_cast<double>(addresses) / kMega));
  }
  const absl::StatusOr<int64_t> memory = AvailableMemoryBytes(root);
  // A system that does not tell its memory is no reason to refuse the data.
  if (memory.ok() && bytes > *memory) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%s needs %.1f MB of memory, and %.1f MB are left to this process by the machine and its "
                        "control group: give it more memory, or use fewer data",
                        path, static_cast<double>(bytes) / kMega, static_cast<double>(*memory) / kMega));
  }
  return absl::OkStatus();
}

}  // namespace starring
