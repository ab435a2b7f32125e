// Convolutions by our own tiles (kernels/cpu/tile_avx512.h), for few input channels, where oneDNN's vectors are mostly
// empty.
//
// Measured at one thread on Zen 4, batch 64, GFLOP/s forward, dweight, dx; the machine's peak is 116:
//   1 -> 6, 5x5, 28x28, padding 2: oneDNN 28, 30, -; this TBD
//   6 -> 16, 5x5, 14x14:           oneDNN 96, 105, 44; this TBD
#ifndef STARRING_KERNELS_CPU_TILED_CONV2D_H_
#define STARRING_KERNELS_CPU_TILED_CONV2D_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cpu/cpu_context.h"
#include "kernels/device.h"

namespace starring {

// Whether tiles beat oneDNN on this shape. A rule, not a timing: the choice decides bits.
inline bool TiledConv2dPays(const Conv2dSpec& spec) { return spec.in_channels < 16; }

// REQUIRES: context->instruction_set == kAvx512. `context` outlives the result.
absl::StatusOr<std::unique_ptr<Conv2d>> CreateTiledConv2d(CpuContext* context, const Conv2dSpec& spec);

}  // namespace starring

#endif  // STARRING_KERNELS_CPU_TILED_CONV2D_H_
