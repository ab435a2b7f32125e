#include "common/host/process_facts.h"

#include <google/protobuf/stubs/common.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/flags/command_line.h"
#include "common/host/own_cores.h"

namespace starring {
namespace {

std::string FirstLine(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

// The folder of this process's control group (version 2), or empty.
std::string ControlGroup() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (absl::StartsWith(line, "0::")) return absl::StrCat("/sys/fs/cgroup", line.substr(3));
  }
  return "";
}

// Memory that the control group still grants; the largest number where it sets no limit.
int64_t ControlGroupMemory() {
  int64_t left = std::numeric_limits<int64_t>::max();
  std::string folder = ControlGroup();
  while (absl::StartsWith(folder, "/sys/fs/cgroup/")) {
    int64_t limit = 0;
    int64_t used = 0;
    if (absl::SimpleAtoi(FirstLine(folder + "/memory.max"), &limit) &&
        absl::SimpleAtoi(FirstLine(folder + "/memory.current"), &used)) {
      left = std::min(left, std::max<int64_t>(0, limit - used));
    }
    folder.resize(folder.rfind('/'));
  }
  return left;
}

int64_t AvailableMemory() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (!absl::StartsWith(line, "MemAvailable:")) continue;
    int64_t kilobytes = 0;
    for (const absl::string_view word : absl::StrSplit(line, ' ', absl::SkipEmpty())) {
      if (absl::SimpleAtoi(word, &kilobytes)) return std::min(kilobytes * 1024, ControlGroupMemory());
    }
  }
  return 0;
}

// Processes with the same text reach each other by 127.0.0.1. The boot's id tells machines apart, the network namespace
// containers of one machine.
std::string Machine() {
  char space[128] = "";
  if (readlink("/proc/self/ns/net", space, sizeof(space) - 1) < 0) space[0] = '\0';
  return absl::StrCat(FirstLine("/proc/sys/kernel/random/boot_id"), " ", space);
}

}  // namespace

v1::ProcessFacts ReadProcessFacts(v1::ProcessFacts::Role role, int number) {
  v1::ProcessFacts facts;
  facts.set_role(role);
  facts.set_number(number);
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  facts.set_host(host);
  facts.set_machine(Machine());
  facts.set_program_version(kStarringVersion);
  v1::ProcessFacts::Library* protobuf = facts.add_libraries();
  protobuf->set_name("protobuf");
  protobuf->set_version(google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION));
  facts.set_cores(static_cast<int>(OwnCores().size()));
  facts.set_memory_bytes(AvailableMemory());
  rlimit descriptors = {};
  if (getrlimit(RLIMIT_NOFILE, &descriptors) == 0) {
    const rlim_t most = std::numeric_limits<int32_t>::max();
    facts.set_descriptors(static_cast<int64_t>(std::min(descriptors.rlim_max, most)));
  }
  return facts;
}

int64_t WallClockMicroseconds() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace starring
