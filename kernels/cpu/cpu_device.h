// The CPU side of kernels/device.h, on oneDNN and OpenMP.
#ifndef STARRING_KERNELS_CPU_CPU_DEVICE_H_
#define STARRING_KERNELS_CPU_CPU_DEVICE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace starring {

// `threads` compute threads for every operation; part of the determinism key. REQUIRES: threads >= 1.
absl::StatusOr<std::unique_ptr<Device>> CreateCpuDevice(int threads);

}  // namespace starring

#endif  // STARRING_KERNELS_CPU_CPU_DEVICE_H_
