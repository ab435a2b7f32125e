// What makes a shape of kernels/device.h make sense, on every device. Each returns InvalidArgument with the numbers.
//
// Thread safety: pure functions.
#ifndef STARRING_KERNELS_SHAPE_CHECKS_H_
#define STARRING_KERNELS_SHAPE_CHECKS_H_

#include "absl/status/status.h"
#include "kernels/device.h"

namespace starring {

// Elements of one tensor of one operation. Inside, offsets fit in 32 bits, which is what a device's libraries index by.
inline constexpr int64_t kTensorElementsMax = (int64_t{1} << 31) - 1;

absl::Status CheckShape(const Conv2dSpec& spec);
absl::Status CheckShape(const DenseSpec& spec);
absl::Status CheckShape(const Pool2dSpec& spec);
absl::Status CheckShape(const GlobalAveragePoolSpec& spec);
absl::Status CheckShape(const BatchNormSpec& spec);
absl::Status CheckShape(const DropoutSpec& spec);
absl::Status CheckShape(const SoftmaxCrossEntropySpec& spec);

}  // namespace starring

#endif  // STARRING_KERNELS_SHAPE_CHECKS_H_
