// The parts of a dense layer or a convolution that are no products: bias, activation, and their gradients.
#ifndef STARRING_KERNELS_CUDA_BIAS_GRADIENT_H_
#define STARRING_KERNELS_CUDA_BIAS_GRADIENT_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/element.h"

namespace starring::cuda {

enum class Mask { kNone, kRelu };

struct BiasGradientArgs {
  Mask mask = Mask::kNone;
  int64_t rows = 0, channels = 0;
  ConstElements y;  // kRelu
  Elements dy;
  float* dbias = nullptr;
  float* partial = nullptr;      // BiasGradientPartialFloats(rows, channels), temporary
  unsigned* counters = nullptr;  // BiasGradientCounters(rows, channels), each 0 before and after
};

int64_t BiasGradientPartialFloats(int64_t rows, int64_t channels);
int64_t BiasGradientCounters(int64_t rows, int64_t channels);

// dbias[c] = sum over rows of dy[row, c]; with kRelu dy = dy where y > 0, else 0, first and in the same pass.
// Shapes:      y, dy: (rows, channels), of the same elements; dbias: (channels), float32.
// Writes:      dbias is overwritten (=); dy too with kRelu, otherwise it is only read.
// Launch:      256 threads a block, one block per tile of column_tiles.h, 6 KiB of shared memory (scalar path: 3 KiB);
//              where there are several tiles along the rows, a group's last block adds their sums up in double.
// Requires:    rows, channels >= 1; 16-byte alignment and channels % 4 == 0 for the vector path, scalar path otherwise
//              (both tested).
// Cost:        1 element read for each, 3 moved with kRelu: bandwidth-bound.
// Determinism: bitwise; sums are trees of fixed shape, and atomics only count blocks. Reference: double sums,
//              tolerance 2e-5.
[[nodiscard]] cudaError_t BiasGradient(cudaStream_t stream, const BiasGradientArgs& args);

// y += bias, then ReLU with kRelu: used where cuBLASLt has no epilogue that does it.
// Shapes:      y: (rows, channels); bias: (channels), of the same elements.
// Writes:      y in place.
// Launch:      256 threads a block, one thread per 16 bytes, no shared memory.
// Requires:    rows * channels < 2^31; 16-byte alignment and channels in whole packs for the vector path, scalar path
//              otherwise (both tested).
// Cost:        2 elements moved for each: bandwidth-bound.
// Determinism: bitwise. Reference: the dense suite without epilogues, tolerance 2e-5.
struct AddBiasArgs {
  Mask activation = Mask::kNone;
  int64_t rows = 0, channels = 0;
  ConstElements bias;  // null: none
  Elements y;
};
[[nodiscard]] cudaError_t AddBias(cudaStream_t stream, const AddBiasArgs& args);

}  // namespace starring::cuda

#endif  // STARRING_KERNELS_CUDA_BIAS_GRADIENT_H_
