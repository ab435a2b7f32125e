#include "common/host/exhausted.h"

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <new>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/host/machine_limits.h"

namespace starring {
namespace {

constexpr int kExitFailed = 1;  // as of common/flags/command_line.h

// A handler of std::terminate can reach only globals.
std::atomic<const char*> program_name = "";
std::atomic<std::terminate_handler> handler_before = nullptr;
std::atomic<bool> is_explaining = false;

std::string GiB(int64_t bytes) { return absl::StrFormat("%.2f GiB", static_cast<double>(bytes) / (1 << 30)); }

// The least pids.max of this process's control group, and of those above it; 0: none is set.
int64_t LeastPidsMax(const std::string& root) {
  int64_t least = 0;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "0::/user.slice" (version 2), "8:pids:/job_7" (version 1)
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3 || !absl::StartsWith(parts[2], "/") || (parts[0] != "0" && parts[1] != "pids")) continue;
    const std::string mount = absl::StrCat(root, "/sys/fs/cgroup", parts[0] == "0" ? "" : "/pids");
    for (std::string path = parts[2] == "/" ? "" : parts[2];; path.resize(path.rfind('/'))) {
      std::ifstream file(absl::StrCat(mount, path, "/pids.max"));
      std::string word;
      int64_t number;
      // Without a limit the file says "max", which is no number.
      if (file >> word && absl::SimpleAtoi(word, &number) && (least == 0 || number < least)) least = number;
      if (path.empty()) break;
    }
  }
  return least;
}

// The soft limit; -1: none.
int64_t SoftLimit(__rlimit_resource resource) {
  rlimit limit;
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return -1;
  return static_cast<int64_t>(limit.rlim_cur);
}

[[noreturn]] void Say(const char* what, const std::string& limits) {
  // _exit writes no buffers, and standard output may have lines for another program.
  std::fflush(stdout);
  std::fprintf(stderr, "%s: error: %s: %s\n", program_name.load(), what, limits.c_str());
  std::fflush(stderr);
  // Destructors could need the very thing of which there is no more.
  _exit(kExitFailed);
}

[[noreturn]] void OnTerminate() {
  const std::exception_ptr thrown = std::current_exception();
  // The text below needs memory too. The second time there is none left to explain with.
  if (thrown != nullptr && !is_explaining.exchange(true)) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::system_error& error) {
      // EAGAIN is pthread_create's error where a limit is reached.
      if (error.code() == std::errc::resource_unavailable_try_again) {
        Say("the machine grants no further thread", ThreadLimitsText());
      }
    } catch (const std::bad_alloc&) {
      Say("the machine grants no further memory", MemoryLimitsText());
    } catch (...) {
    }
  }
  handler_before.load()();
  // The behaviour of a handler that returns is undefined.
  std::abort();
}

}  // namespace

std::string ThreadLimitsText(const std::string& root) {
  std::vector<std::string> limits;
  if (const int64_t user = SoftLimit(RLIMIT_NPROC); user >= 0) {
    limits.push_back(absl::StrCat("ulimit -u is ", user, " for all processes and threads of this user"));
  }
  if (const int64_t group = LeastPidsMax(root); group > 0) {
    limits.push_back(absl::StrCat("pids.max of the control group is ", group, " (docker: --pids-limit)"));
  }
  if (limits.empty()) limits.emplace_back("see kernel.threads-max and vm.max_map_count of sysctl");
  return absl::StrCat(absl::StrJoin(limits, ", "), ": raise it, or start fewer processes and threads");
}

std::string MemoryLimitsText(const std::string& root) {
  std::vector<std::string> limits;
  if (const int64_t space = SoftLimit(RLIMIT_AS); space >= 0) {
    limits.push_back(absl::StrCat("ulimit -v is ", GiB(space)));
  }
  if (const absl::StatusOr<int64_t> left = AvailableMemoryBytes(root); left.ok()) {
    limits.push_back(absl::StrCat("machine and control group still grant ", GiB(*left)));
  }
  return absl::StrCat(absl::StrJoin(limits, ", "), ": give it more, or train with a smaller model, batch or data set");
}

void ExplainExhaustion(const char* program) {
  program_name = program;
  handler_before = std::set_terminate(OnTerminate);
}

}  // namespace starring
