#include "common/host/process_facts.h"

#include <google/protobuf/stubs/common.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/flags/command_line.h"
#include "common/host/host_identity.h"
#include "common/host/machine_limits.h"

namespace starring {
namespace {

// Processes with the same text reach each other by 127.0.0.1. The boot's id tells machines apart, and the network
// namespace tells containers of one machine apart.
std::string Machine() {
  char space[128] = "";
  if (readlink("/proc/self/ns/net", space, sizeof(space) - 1) < 0) space[0] = '\0';
  return absl::StrCat(BootId(), " ", space);
}

}  // namespace

v1::ProcessFacts ReadProcessFacts(v1::ProcessFacts::Role role, int number) {
  v1::ProcessFacts facts;
  facts.set_role(role);
  facts.set_number(number);
  facts.set_host(HostName());
  facts.set_machine(Machine());
  facts.set_program_version(kStarringVersion);
  v1::ProcessFacts::Library* protobuf = facts.add_libraries();
  protobuf->set_name("protobuf");
  protobuf->set_version(google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION));
  const CoreLimits cores = ReadCoreLimits();
  facts.set_cores(cores.cores);
  facts.set_cpu_quota(cores.quota);
  facts.set_memory_bytes(AvailableMemoryBytes().value_or(0));
  rlimit descriptors = {};
  if (getrlimit(RLIMIT_NOFILE, &descriptors) == 0) {
    // The hard limit: worker and server raise their soft one to it. Without a maximum, RLIM_INFINITY would become -1.
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
