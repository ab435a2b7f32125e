// How much memory, processor time and how many descriptors this machine gives a process, and how many descriptors a
// process needs.
#ifndef STARRING_COMMON_HOST_MACHINE_LIMITS_H_
#define STARRING_COMMON_HOST_MACHINE_LIMITS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace starring {

// The least of the memory that the kernel can still give (MemAvailable) and what this process's control group, and each
// group above it, still grants. `root` is a folder with proc and sys, for tests. NotFound without /proc/meminfo.
absl::StatusOr<int64_t> AvailableMemoryBytes(const std::string& root = "");

// The processor time that a process may use.
struct CoreLimits {
  int cores = 0;     // that it may run on; 0: the system does not tell
  double quota = 0;  // the time that its control groups grant, in cores: 0.5 is half the time of one; 0: no limit
};

// This process's cores, and the least quota of its control group and the groups above it. `root` as above.
CoreLimits ReadCoreLimits(const std::string& root = "");

// The number of threads that these limits let run all the time. A quota counts as whole cores, rounded down, so that no
// thread is stopped until the next period. At least 1.
[[nodiscard]] int CountedCores(const CoreLimits& limits);

// "2 cores, quota 0.5"; "2 cores" without a quota.
std::string CoresText(const CoreLimits& limits);

// Number of processes on this machine that run the same file as this one, itself included. Processes that this user may
// not inspect do not count.
int CountProcessesOfThisProgram();

// Raises the number of descriptors that this process may open to `wanted`, or as far as the hard limit allows. Returns
// the new number, which is never less than before.
int64_t RaiseDescriptorLimit(int64_t wanted);

// The most descriptors that a worker with `connections` connections opens, and a server whose workers, and members of
// an elastic run, have `kept_connections` connections together.
int64_t WorkerDescriptors(int64_t connections);
int64_t ServerDescriptors(int64_t kept_connections);

}  // namespace starring

#endif  // STARRING_COMMON_HOST_MACHINE_LIMITS_H_
