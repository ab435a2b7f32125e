// Dense layers by our own tiles (kernels/cpu/tiles.h).
//
// A forward product y = x weight^T has its weights transposed the wrong way for any library: oneDNN's packs all of them
// in every step. Here the batch is the lane: y^T = weight x^T reads each weight once, in order, and only x and y, which
// are small, are transposed. No pass allocates (oneDNN's inner product allocates its packing buffers in every call).
// Measured at one thread on Zen 4 (2026-11-21, kernels_bench), batch 64, in 1024, out 1024, GFLOP/s forward, backward,
// of a peak of 117 with fused multiply-adds:
//   AVX-512   this 114, 111; oneDNN's sgemm 74 forward
//   AVX2      this 112, 97; oneDNN 94, 69
//   baseline  this 39, 34; oneDNN with SSE4.1 39, 39
#ifndef STARRING_KERNELS_CPU_TILED_DENSE_H_
#define STARRING_KERNELS_CPU_TILED_DENSE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cpu/cpu_context.h"
#include "kernels/device.h"

namespace starring {

// `context` outlives the result.
absl::StatusOr<std::unique_ptr<Dense>> CreateTiledDense(CpuContext* context, const DenseSpec& spec);

}  // namespace starring

#endif  // STARRING_KERNELS_CPU_TILED_DENSE_H_
