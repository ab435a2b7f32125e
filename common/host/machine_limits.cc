#include "common/host/machine_limits.h"

#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/base/limits.h"

namespace starring {
namespace {

// The first line of a file; empty if there is none.
std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The files of a control group that say how much memory it may have and has. `cache` is a line of memory.stat: file
// pages that the kernel drops when memory is short, which count as used.
struct GroupFiles {
  const char* limit;
  const char* used;
  const char* cache;
};
constexpr GroupFiles kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr GroupFiles kVersion2 = {"memory.max", "memory.current", "inactive_file"};

// The number in the line "NAME NUMBER" of a file; 0 if there is none.
int64_t NumberIn(const std::string& path, absl::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    int64_t number;
    if (words.size() == 2 && words[0] == name && absl::SimpleAtoi(words[1], &number)) return number;
  }
  return 0;
}

// The least that the group at `path` below `mount`, or a group above it, still grants: the kernel enforces the limit of
// each of them. A group that cannot be seen from here, as in a container, counts as unlimited, and so does "max".
int64_t LeastLeft(const std::string& mount, std::string path, const GroupFiles& files) {
  int64_t least = std::numeric_limits<int64_t>::max();
  while (true) {
    const std::string folder = absl::StrCat(mount, path, "/");
    int64_t limit;
    if (absl::SimpleAtoi(FirstLine(folder + files.limit), &limit)) {
      int64_t used;
      if (!absl::SimpleAtoi(FirstLine(folder + files.used), &used)) used = 0;
      used = std::max<int64_t>(0, used - NumberIn(folder + "memory.stat", files.cache));
      least = std::min(least, std::max<int64_t>(0, limit - used));
    }
    if (path.empty()) return least;
    path.resize(path.rfind('/'));
  }
}

}  // namespace

absl::StatusOr<int64_t> AvailableMemoryBytes(const std::string& root) {
  std::ifstream facts(root + "/proc/meminfo");
  std::optional<int64_t> available;
  for (std::string line; std::getline(facts, line);) {  // "MemAvailable:   12345678 kB"
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t kib;
    if (words.size() >= 2 && words[0] == "MemAvailable:" && absl::SimpleAtoi(words[1], &kib)) available = kib * 1024;
  }
  if (!available.has_value()) return absl::NotFoundError("no MemAvailable in /proc/meminfo");
  std::ifstream groups(root + "/proc/self/cgroup");
  // A machine with both versions has lines of both, and both limits hold. A group of version 1 without a limit has a
  // huge number.
  for (std::string line; std::getline(groups, line);) {  // "0::/user.slice" (version 2), "9:memory:/job_7" (version 1)
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3 || parts[2].empty() || parts[2][0] != '/') continue;
    // LeastLeft ends at an empty path, the root group.
    const std::string path = parts[2] == "/" ? "" : parts[2];
    if (parts[0] == "0") {
      available = std::min(*available, LeastLeft(root + "/sys/fs/cgroup", path, kVersion2));
    } else if (parts[1] == "memory") {
      available = std::min(*available, LeastLeft(root + "/sys/fs/cgroup/memory", path, kVersion1));
    }
  }
  return *available;
}

int CountProcessesOfThisProgram() {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path own = fs::read_symlink("/proc/self/exe", error);
  if (error) return 1;
  int count = 0;
  for (fs::directory_iterator it("/proc", error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename();
    if (!std::all_of(name.begin(), name.end(), absl::ascii_isdigit)) continue;
    std::error_code gone;  // the process may end while it is looked at
    // A process that this user may not inspect gives an error and does not count.
    if (fs::read_symlink(it->path() / "exe", gone) == own && !gone) ++count;
  }
  return std::max(count, 1);
}

int64_t RaiseDescriptorLimit(int64_t wanted) {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const auto target = std::min<rlim_t>(static_cast<rlim_t>(wanted), limit.rlim_max);
  if (target > limit.rlim_cur) {
    const rlimit raised = {.rlim_cur = target, .rlim_max = limit.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  // RLIM_INFINITY is the largest unsigned number, which would be negative here.
  return static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<int64_t>::max()));
}

int64_t WorkerDescriptors(int64_t connections) { return kOtherDescriptorsMax + connections; }

int64_t ServerDescriptors(int64_t kept_connections) {
  return kOtherDescriptorsMax + kDescriptorsPerConnection * (kept_connections + kStrangerConnectionsMax);
}

}  // namespace starring
