// Dropout by Philox: the mask depends on the seed, the layer, the step and the place in the global batch only.
#ifndef STARRING_KERNELS_CPU_DROPOUT_H_
#define STARRING_KERNELS_CPU_DROPOUT_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cpu/cpu_context.h"
#include "kernels/device.h"

namespace starring {

// `context` outlives the result.
absl::StatusOr<std::unique_ptr<Dropout>> CreateCpuDropout(CpuContext* context, const DropoutSpec& spec);

}  // namespace starring

#endif  // STARRING_KERNELS_CPU_DROPOUT_H_
