// Batch normalisation of a (rows, channels) matrix, with the ReLU that follows it in the same passes.
//
// Words and tiles: column_tiles.h. Statistics are computed tile by tile, in float: a thread sums distances from its own
// first value, and their squares, which then become the tile's sum and squared distances from the tile's own mean. All
// tiles are merged in double (Chan, Golub, LeVeque 1983, as on the CPU). So memory is read once, and no difference of
// two large sums loses digits. Forward reads x twice and writes y; backward reads x, dy and, with ReLU, y twice and
// writes dx.
#ifndef STARRING_KERNELS_CUDA_BATCH_NORM_H_
#define STARRING_KERNELS_CUDA_BATCH_NORM_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/bias_gradient.h"
#include "kernels/element.h"

namespace starring::cuda {

struct BatchNormShape {
  int64_t rows = 0, channels = 0;  // rows * channels < 2^31
  Mask activation = Mask::kNone;
  float epsilon = 0, momentum = 0;
};

// Device memory of one operation, between its kernels.
struct BatchNormMemory {
  float* sums = nullptr;         // BatchNormSumsFloats(shape); other operations may use it in between
  unsigned* counters = nullptr;  // BatchNormCounters(shape), each 0 before and after an operation
  float* mean = nullptr;         // (channels), of the last forward; so is inverse_deviation
  float* inverse_deviation = nullptr;
  float* scale = nullptr;  // (channels), as are shift and slope; other operations may use them in between
  float* shift = nullptr;
  float* slope = nullptr;
};

int64_t BatchNormSumsFloats(const BatchNormShape& shape);
int64_t BatchNormCounters(const BatchNormShape& shape);

// y = act((x - mean) * gamma / sqrt(variance + epsilon) + beta) by the batch's mean and biased variance, and
// running = (1 - momentum) * running + momentum * batch, with the unbiased variance; with one row, the variance stays.
// Shapes:      x, y: (rows, channels), of the same elements; gamma, beta, running_*: (channels), float32.
// Writes:      y, mean and inverse_deviation of `memory` (=); running_* in place.
// Launch:      256 threads a block; statistics: one block per tile, the last of each group merges, 6 KiB of shared
//              memory (scalar path: 3 KiB); normalise: one thread per 16 bytes.
// Requires:    16-byte alignment and channels in whole packs for the vector path, scalar path otherwise (both tested).
//              Packs have 4 channels in the statistics, 16 bytes in the other kernel.
// Cost:        3 elements moved for each: bandwidth-bound.
// Determinism: bitwise; sums are trees of fixed shape, and atomics only count blocks. Reference: double, tolerance
//              2e-5.
struct BatchNormForwardArgs {
  ConstElements x;
  const float* gamma = nullptr;
  const float* beta = nullptr;
  float* running_mean = nullptr;
  float* running_variance = nullptr;
  Elements y;
};
[[nodiscard]] cudaError_t BatchNormForward(cudaStream_t stream, const BatchNormShape& shape,
                                           const BatchNormMemory& memory, const BatchNormForwardArgs& args);

// y = act((x - running_mean) * gamma / sqrt(running_variance + epsilon) + beta).
// Shapes:      as BatchNormForward.
// Writes:      y, scale of `memory` (=); nothing else of `memory` is used.
// Launch:      256 threads a block; the scale: one thread per channel; normalise: one thread per 16 bytes; no shared
//              memory.
// Requires:    as BatchNormForward.
// Cost:        2 elements moved for each: bandwidth-bound.
// Determinism: bitwise. Reference: double, tolerance 2e-5.
struct BatchNormInferArgs {
  ConstElements x;
  const float* gamma = nullptr;
  const float* beta = nullptr;
  const float* running_mean = nullptr;
  const float* running_variance = nullptr;
  Elements y;
};
[[nodiscard]] cudaError_t BatchNormInfer(cudaStream_t stream, const BatchNormShape& shape,
                                         const BatchNormMemory& memory, const BatchNormInferArgs& args);

// With g = dy where the activation let y through: dbeta = sum g, dgamma = sum g * xhat,
// dx = gamma / deviation * (g - mean of g - xhat * mean of g * xhat).
// Shapes:      x, y, dy, dx: (rows, channels), of the same elements; gamma, dgamma, dbeta: (channels), float32; dx may
//              alias dy.
// Writes:      dx, dgamma, dbeta are overwritten (=).
// Launch:      as BatchNormForward.
// Requires:    after BatchNormForward with the same `memory`; y only with kRelu; vector and scalar path as there.
// Cost:        5 elements moved for each, 7 with kRelu: bandwidth-bound.
// Determinism: bitwise. Reference: finite differences in double, tolerance 2e-4.
struct BatchNormBackwardArgs {
  ConstElements x;
  const float* gamma = nullptr;
  ConstElements y;
  ConstElements dy;
  Elements dx;
  float* dgamma = nullptr;
  float* dbeta = nullptr;
};
[[nodiscard]] cudaError_t BatchNormBackward(cudaStream_t stream, const BatchNormShape& shape,
                                            const BatchNormMemory& memory, const BatchNormBackwardArgs& args);

}  // namespace starring::cuda

#endif  // STARRING_KERNELS_CUDA_BATCH_NORM_H_
