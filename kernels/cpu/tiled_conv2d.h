// Convolutions by our own tiles (kernels/cpu/tiles.h): for few input channels, where oneDNN's vectors are mostly empty,
// and for all without AVX2, where oneDNN (measured with SSE4.1) goes through its sgemm, which allocates.
//
// Measured at one thread on Zen 4 (2026-11-21), batch 64, microseconds forward and backward, where
// oneDNN's backward has no ReLU mask to apply yet:
//   1 -> 6, 5x5, 28x28, padding 2, no dx: oneDNN 535, 497; this 158, 164
//   6 -> 16, 5x5, 14x14:                  oneDNN 321, 993; this 305, 654
//   1 -> 32, 3x3, 28x28, no dx:           oneDNN 409, 514; this 335, 452
//   3 -> 16, 3x3, 32x32, padding 1, no dx: oneDNN 648, 731; this 622, 688
// with AVX2 (kernels_bench --isa=avx2), mask included:
//   6 -> 16, 5x5, 14x14:                  oneDNN 432, 962; this 291, 681
//   1 -> 32, 3x3, 28x28, no dx:           oneDNN 320, 1145; this 394, 459
// and without (baseline, SSE41):
//   64 -> 64, 3x3, 8x8, padding 1:        oneDNN 11550, 17251; this 7984, 17218
#ifndef STARRING_KERNELS_CPU_TILED_CONV2D_H_
#define STARRING_KERNELS_CPU_TILED_CONV2D_H_

#include <memory>

#include "absl/status/statusor.h"
#include "common/arithmetic/instruction_set.h"
#include "kernels/cpu/cpu_context.h"
#include "kernels/device.h"

namespace starring {

// Whether tiles beat oneDNN on this shape. A rule, not a timing: the choice decides bits.
inline bool TiledConv2dPays(const Conv2dSpec& spec, InstructionSet set) {
  return spec.in_channels < 16 || set == InstructionSet::kBaseline;
}

// `context` outlives the result.
absl::StatusOr<std::unique_ptr<Conv2d>> CreateTiledConv2d(CpuContext* context, const Conv2dSpec& spec);

}  // namespace starring

#endif  // STARRING_KERNELS_CPU_TILED_CONV2D_H_
