#include "common/host/machine_limits.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/base/limits.h"
#include "common/host/own_cores.h"
#include "common/host/own_program.h"

namespace starring {
namespace {

// The first line of a file; empty if there is none.
std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The files of a control group that say how much memory it may have and has. `cache` are lines of memory.stat: file
// pages that the kernel drops when memory is short, which count as used. Those that were used twice, as a mapped data
// set's, are among them: MemAvailable counts them, too.
struct MemoryFiles {
  const char* limit;
  const char* used;
  std::array<const char*, 2> cache;
};
constexpr MemoryFiles kMemoryOf1 = {
    "memory.limit_in_bytes", "memory.usage_in_bytes", {"total_inactive_file", "total_active_file"}};
constexpr MemoryFiles kMemoryOf2 = {"memory.max", "memory.current", {"inactive_file", "active_file"}};

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

// The versions of control groups. A machine may have both, and then both limits hold.
enum class GroupVersion { k1, k2 };
using GroupVisitor = absl::FunctionRef<void(const std::string& folder, GroupVersion version)>;

// Visits the group at `path` below `mount`, and every group above it: the kernel enforces the limit of each of them.
void VisitUpwards(const std::string& mount, std::string path, GroupVersion version, GroupVisitor visit) {
  if (path == "/") path.clear();
  while (true) {
    visit(absl::StrCat(mount, path, "/"), version);
    if (path.empty()) return;
    path.resize(path.rfind('/'));
  }
}

// Visits the groups that limit this process's use of `controller`. The files of a group that cannot be seen from here,
// as in a container, are missing: such a group counts as unlimited.
void ForEachGroup(const std::string& root, const std::string& controller, GroupVisitor visit) {
  std::ifstream groups(root + "/proc/self/cgroup");
  const std::string folder = root + "/sys/fs/cgroup";
  for (std::string line; std::getline(groups, line);) {  // "0::/user.slice" (version 2), "9:cpu,cpuacct:/job_7" (1)
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3 || parts[2].empty() || parts[2][0] != '/') continue;
    if (parts[0] == "0") VisitUpwards(folder, parts[2], GroupVersion::k2, visit);
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    if (std::ranges::find(controllers, controller) == controllers.end()) continue;
    VisitUpwards(absl::StrCat(folder, "/", controller), parts[2], GroupVersion::k1, visit);
    // Controllers that are mounted together have a folder of all their names. Not every system links each name to it.
    if (controllers.size() > 1) VisitUpwards(absl::StrCat(folder, "/", parts[1]), parts[2], GroupVersion::k1, visit);
  }
}

// The bytes that the control group in `folder` still grants; the largest number without a limit. A group of version 1
// without a limit has a huge number, and one of version 2 has "max".
int64_t MemoryLeft(const std::string& folder, GroupVersion version) {
  const MemoryFiles& files = version == GroupVersion::k1 ? kMemoryOf1 : kMemoryOf2;
  int64_t limit, used;
  if (!absl::SimpleAtoi(FirstLine(folder + files.limit), &limit)) return std::numeric_limits<int64_t>::max();
  if (!absl::SimpleAtoi(FirstLine(folder + files.used), &used)) used = 0;
  for (const char* const line : files.cache) used -= NumberIn(folder + "memory.stat", line);
  return std::max<int64_t>(0, limit - std::max<int64_t>(0, used));
}

// The processor time that the control group in `folder` grants, in cores; infinity without a quota.
double CpuQuotaOf(const std::string& folder, GroupVersion version) {
  // "50000 100000": so many microseconds of processor time in each period of so many.
  const std::string text = version == GroupVersion::k2 ? FirstLine(folder + "cpu.max")
                                                       : absl::StrCat(FirstLine(folder + "cpu.cfs_quota_us"), " ",
                                                                      FirstLine(folder + "cpu.cfs_period_us"));
  const std::vector<std::string> words = absl::StrSplit(text, ' ');
  int64_t time_us, period_us;
  // A group without a quota has the time "max" in version 2 and -1 in version 1.
  if (words.size() != 2 || !absl::SimpleAtoi(words[0], &time_us) || !absl::SimpleAtoi(words[1], &period_us) ||
      time_us <= 0 || period_us <= 0) {
    return std::numeric_limits<double>::infinity();
  }
  return static_cast<double>(time_us) / static_cast<double>(period_us);
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
  ForEachGroup(root, "memory", [&](const std::string& folder, GroupVersion version) {
    available = std::min(*available, MemoryLeft(folder, version));
  });
  return *available;
}

CoreLimits ReadCoreLimits(const std::string& root) {
  double quota = std::numeric_limits<double>::infinity();
  ForEachGroup(root, "cpu", [&](const std::string& folder, GroupVersion version) {
    quota = std::min(quota, CpuQuotaOf(folder, version));
  });
  return {.cores = static_cast<int>(OwnCores().size()), .quota = std::isinf(quota) ? 0 : quota};
}

int CountedCores(const CoreLimits& limits) {
  const int cores = std::max(1, limits.cores);
  return limits.quota > 0 ? std::max(1, static_cast<int>(std::min<double>(cores, limits.quota))) : cores;
}

std::string CoresText(const CoreLimits& limits) {
  return absl::StrCat(limits.cores, limits.cores == 1 ? " core" : " cores",
                      limits.quota > 0 ? absl::StrFormat(", quota %.3g", limits.quota) : "");
}

int CountProcessesOfThisProgram() {
  namespace fs = std::filesystem;
  std::error_code error;
  const std::string own = OwnProgram();
  if (own.empty()) return 1;
  int count = 0;
  for (fs::directory_iterator it("/proc", error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename();
    if (!std::all_of(name.begin(), name.end(), absl::ascii_isdigit)) continue;
    std::error_code gone;  // the process may end while it is looked at
    // A process that this user may not inspect gives an error and does not count.
    const fs::path file = fs::read_symlink(it->path() / "exe", gone);
    if (!gone && ProgramOf(file) == own) ++count;
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
