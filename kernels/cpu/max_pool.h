// Max pooling on NHWC float32.
#ifndef STARRING_KERNELS_CPU_MAX_POOL_H_
#define STARRING_KERNELS_CPU_MAX_POOL_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cpu/cpu_context.h"
#include "kernels/device.h"

namespace starring {

// `context` outlives the result.
absl::StatusOr<std::unique_ptr<MaxPool2d>> CreateCpuMaxPool2d(CpuContext* context, const Pool2dSpec& spec);

}  // namespace starring

#endif  // STARRING_KERNELS_CPU_MAX_POOL_H_
