// Batch normalisation on NHWC float32, with an optional ReLU behind it.
#ifndef STARRING_KERNELS_CPU_BATCH_NORM_H_
#define STARRING_KERNELS_CPU_BATCH_NORM_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cpu/cpu_context.h"
#include "kernels/device.h"

namespace starring {

// `context` outlives the result.
absl::StatusOr<std::unique_ptr<BatchNorm>> CreateCpuBatchNorm(CpuContext* context, const BatchNormSpec& spec);

}  // namespace starring

#endif  // STARRING_KERNELS_CPU_BATCH_NORM_H_
