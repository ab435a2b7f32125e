// Convolution by oneDNN. Activations and weights are ours (NHWC, O-KH-KW-I); what a primitive wants otherwise is
// reordered in every call.
#ifndef STARRING_KERNELS_CPU_ONEDNN_CONV2D_H_
#define STARRING_KERNELS_CPU_ONEDNN_CONV2D_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cpu/cpu_context.h"
#include "kernels/device.h"

namespace starring {

// `context` outlives the result.
absl::StatusOr<std::unique_ptr<Conv2d>> CreateOnednnConv2d(CpuContext* context, const Conv2dSpec& spec);

}  // namespace starring

#endif  // STARRING_KERNELS_CPU_ONEDNN_CONV2D_H_
