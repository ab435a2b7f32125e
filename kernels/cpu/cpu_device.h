// The CPU side of kernels/device.h: our own loops and tiles, and oneDNN for convolutions of 16 or more input channels
// on CPUs with AVX2. kernels/README.md says which operation runs where, and why.
//
// The device outlives its operations. Threads are OpenMP's, shared with oneDNN. Between operations they wait as
// OMP_WAIT_POLICY says, which OpenMP reads when the process starts. With several threads, start the process with
// OMP_WAIT_POLICY=PASSIVE; otherwise waiting threads spin on cores that the exchange needs.
#ifndef STARRING_KERNELS_CPU_CPU_DEVICE_H_
#define STARRING_KERNELS_CPU_CPU_DEVICE_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/arithmetic/instruction_set.h"
#include "kernels/device.h"

namespace starring {

struct CpuDeviceOptions {
  // Compute threads for every operation; bits depend on their number. REQUIRES: at least 1.
  int threads = 1;
  // The instruction set of our own loops and tiles. oneDNN chooses its own unless LimitOnednn limits it.
  // REQUIRES: at most BestInstructionSet().
  InstructionSet instruction_set = BestInstructionSet();
};
// InvalidArgument if OpenMP does not grant so many threads (granted_threads.h). REQUIRES: the thread that creates the
// device runs its operations.
[[nodiscard]] absl::StatusOr<std::unique_ptr<Device>> CreateCpuDevice(const CpuDeviceOptions& options);

// Limits oneDNN's instruction set for the whole process. Call it before the first CpuDevice. InvalidArgument if this
// machine has no such instructions, FailedPrecondition if oneDNN has been used already.
absl::Status LimitOnednn(InstructionSet instruction_set);

// The facts about this machine that decide the bits of a gradient besides CpuDeviceOptions, as (name, value), for
// JobSpec::agreed_flags. They are the instruction sets of our loops and of oneDNN, the versions of libraries that
// compute, and the bits of the C library's functions, which depend on the processor.
std::vector<std::pair<std::string, std::string>> CpuArithmetic(InstructionSet instruction_set);

}  // namespace starring

#endif  // STARRING_KERNELS_CPU_CPU_DEVICE_H_
