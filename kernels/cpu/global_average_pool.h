// Mean over height and width, on NHWC float32.
#ifndef STARRING_KERNELS_CPU_GLOBAL_AVERAGE_POOL_H_
#define STARRING_KERNELS_CPU_GLOBAL_AVERAGE_POOL_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cpu/cpu_context.h"
#include "kernels/device.h"

namespace starring {

// `context` outlives the result.
absl::StatusOr<std::unique_ptr<GlobalAveragePool>> CreateCpuGlobalAveragePool(CpuContext* context,
                                                                              const GlobalAveragePoolSpec& spec);

}  // namespace starring

#endif  // STARRING_KERNELS_CPU_GLOBAL_AVERAGE_POOL_H_
