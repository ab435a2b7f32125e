// The parts of a dense layer or a convolution that are no products: bias, activation, and their gradients.
#ifndef STARRING_KERNELS_CUDA_BIAS_GRADIENT_H_
#define STARRING_KERNELS_CUDA_BIAS_GRADIENT_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace starring::cuda {

enum class Mask { kNone, kRelu };

struct BiasGradientArgs {
  Mask mask = Mask::kNone;
  int64_t rows = 0, channels = 0;
  const float* y = nullptr;  // kRelu
  float* dy = nullptr;
  float* dbias = nullptr;
  float* partial = nullptr;      // BiasGradientPartialFloats(rows, channels), temporary
  unsigned* counters = nullptr;  // BiasGradientCounters(rows, channels), each 0 before and after
};

int64_t BiasGradientPartialFloats(int64_t rows, int64_t channels);
int64_t BiasGradientCounters(int64_t rows, int64_t channels);

// dbias[c] = sum over rows of dy[row, c]; with kRelu dy = dy where y > 0, else 0, first and in the same pass.
// Shapes:      y, dy: (rows, channels); dbias: (channels), float32.
// Writes:      dbias is overwritten (=); dy too with kRelu, otherwise it is only read.
// Launch:      256 threads a block, one block per tile of column_tiles.h, 6 KiB of shared memory (scalar path: 3 KiB);
//              where there are several tiles along the rows, a group's last block adds their sums up in double.
// Requires:    rows, channels >= 1; 16-byte alignment and channels % 4 == 0 for the vector path, scalar path otherwise
//              (both tested).
// Cost:        4 bytes read per element, 12 moved with kRelu: bandwidth-bound.
// Determinism: bitwise; sums are trees of fixed shape, and atomics only count blocks. Reference: double sums,
//              tolerance 2e-5.
[[nodiscard]] cudaError_t BiasGradient(cudaStream_t stream, const BiasGradientArgs& args);

// y += bias, then ReLU with kRelu: used where cuBLASLt has no epilogue that does it.
// Shapes:      y: (rows, channels); bias: (channels), float32.
// Writes:      y in place.
// Launch:      256 threads a block, one thread per 4 elements, no shared memory.
// Requires:    rows * channels < 2^31; 16-byte alignment and channels % 4 == 0 for the vector path, scalar path
//              otherwise (both tested).
// Cost:        8 bytes moved per element: bandwidth-bound.
// Determinism: bitwise. Reference: the dense suite without epilogues, tolerance 2e-5.
struct AddBiasArgs {
  Mask activation = Mask::kNone;
  int64_t rows = 0, channels = 0;
  const float* bias = nullptr;  // null: none
  float* y = nullptr;
};
[[nodiscard]] cudaError_t AddBias(cudaStream_t stream, const AddBiasArgs& args);

}  // namespace starring::cuda

#endif  // STARRING_KERNELS_CUDA_BIAS_GRADIENT_H_
