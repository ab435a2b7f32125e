// What this machine gives a process, and what a process needs of it: memory and descriptors.
#ifndef STARRING_COMMON_HOST_MACHINE_LIMITS_H_
#define STARRING_COMMON_HOST_MACHINE_LIMITS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace starring {

// The smaller of what the kernel thinks can still be allocated (MemAvailable) and the limits of this process's control
// group and those above it. `root` has proc and sys, for tests. NotFound without /proc/meminfo.
absl::StatusOr<int64_t> AvailableMemoryBytes(const std::string& root = "");

// Processes on this machine that run the same file as this one, itself included. Those that this user may not look at
// do not count.
int CountProcessesOfThisProgram();

// Raises the number of descriptors that this process may open to `wanted`, or as far as the hard limit allows. Returns
// what it may open now; never less than before.
int64_t RaiseDescriptorLimit(int64_t wanted);

// Descriptors that a worker with so many connections has open at most, and a server whose workers have so many.
int64_t WorkerDescriptors(int64_t connections);
int64_t ServerDescriptors(int64_t worker_connections);

}  // namespace starring

#endif  // STARRING_COMMON_HOST_MACHINE_LIMITS_H_
