// Softmax, cross entropy and its gradient in one pass over the logits.
#ifndef STARRING_KERNELS_CPU_SOFTMAX_CROSS_ENTROPY_H_
#define STARRING_KERNELS_CPU_SOFTMAX_CROSS_ENTROPY_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cpu/cpu_context.h"
#include "kernels/device.h"

namespace starring {

// `context` outlives the result.
absl::StatusOr<std::unique_ptr<SoftmaxCrossEntropy>> CreateCpuSoftmaxCrossEntropy(CpuContext* context,
                                                                                  const SoftmaxCrossEntropySpec& spec);

}  // namespace starring

#endif  // STARRING_KERNELS_CPU_SOFTMAX_CROSS_ENTROPY_H_
