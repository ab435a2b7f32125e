// Dense layers by oneDNN's inner product.
#ifndef STARRING_KERNELS_CPU_ONEDNN_DENSE_H_
#define STARRING_KERNELS_CPU_ONEDNN_DENSE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cpu/cpu_context.h"
#include "kernels/device.h"

namespace starring {

// `context` outlives the result.
absl::StatusOr<std::unique_ptr<Dense>> CreateOnednnDense(CpuContext* context, const DenseSpec& spec);

}  // namespace starring

#endif  // STARRING_KERNELS_CPU_ONEDNN_DENSE_H_
