// Checks of the shapes of kernels/device.h that hold on every device: every size is positive, a kernel fits into its
// padded input, a tensor has at most kTensorElementsMax elements, rates and factors are in their ranges. Each returns
// InvalidArgument with the name and the numbers.
//
// Thread safety: pure functions.
#ifndef STARRING_KERNELS_SHAPE_CHECKS_H_
#define STARRING_KERNELS_SHAPE_CHECKS_H_

#include "absl/status/status.h"
#include "kernels/device.h"

namespace starring {

// The most elements of one tensor of one operation: offsets then fit in the 32 bits by which devices' libraries index.
inline constexpr int64_t kTensorElementsMax = (int64_t{1} << 31) - 1;

[[nodiscard]] absl::Status CheckShape(const OperationSpec& spec);
[[nodiscard]] absl::Status CheckShape(const BatchNormSpec& spec);
[[nodiscard]] absl::Status CheckShape(const DropoutSpec& spec);
[[nodiscard]] absl::Status CheckShape(const LossSpec& spec);

}  // namespace starring

#endif  // STARRING_KERNELS_SHAPE_CHECKS_H_
