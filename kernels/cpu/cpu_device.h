// The CPU side of kernels/device.h: oneDNN, and our own loops and tiles where it is far from what the CPU can do.
//
// The device outlives its operations. Threads are OpenMP's, shared with oneDNN; between operations they wait as
// OMP_WAIT_POLICY says, which OpenMP reads when the process starts: with several threads, start it with
// OMP_WAIT_POLICY=PASSIVE, else waiting threads spin on cores that the exchange needs.
#ifndef STARRING_KERNELS_CPU_CPU_DEVICE_H_
#define STARRING_KERNELS_CPU_CPU_DEVICE_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/arithmetic/instruction_set.h"
#include "kernels/device.h"

namespace starring {

// `threads` compute threads for every operation; part of the determinism key. REQUIRES: threads >= 1.
absl::StatusOr<std::unique_ptr<Device>> CreateCpuDevice(int threads);

struct CpuDeviceOptions {
  int threads = 1;
  // REQUIRES: at most BestInstructionSet(). What our own loops and tiles use. oneDNN, which computes the other
  // convolutions above kBaseline, chooses for itself unless LimitOnednn says otherwise.
  InstructionSet instruction_set = BestInstructionSet();
};
absl::StatusOr<std::unique_ptr<Device>> CreateCpuDevice(const CpuDeviceOptions& options);

// Limits what oneDNN uses, for the whole process. Call it before the first CpuDevice. InvalidArgument if this machine
// has no such instructions.
absl::Status LimitOnednn(InstructionSet instruction_set);

}  // namespace starring

#endif  // STARRING_KERNELS_CPU_CPU_DEVICE_H_
