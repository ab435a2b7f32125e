// Dropout by Philox 4x32-10 (common/arithmetic/philox.h): the CPU's mask, bit by bit.
#ifndef STARRING_KERNELS_CUDA_DROPOUT_H_
#define STARRING_KERNELS_CUDA_DROPOUT_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/step_values.h"

namespace starring::cuda {

struct DropoutArgs {
  int64_t count = 0;
  int64_t sample_elements = 0;
  uint64_t seed = 0;
  uint32_t stream = 0;     // the layer's number, below 2^24
  uint32_t threshold = 0;  // a word is dropped when its upper 24 bits are below
  float scale = 1;         // of what is kept
  // step and first_sample, unless `bound`, in device memory, has them when the kernel runs.
  CudaStepValues values;
  const CudaStepValues* bound = nullptr;
};

// out[e] = in[e] * scale where Philox word (first_sample * sample_elements + e) is kept, else 0. Forward and backward
// are this same function: the mask is computed again instead of stored, which costs less than the trip through memory.
// Shapes:      in, out: (count) float32; out may alias in.
// Writes:      out is overwritten (=).
// Launch:      256 threads a block, one thread per four words of one Philox counter, no shared memory.
// Requires:    16-byte alignment and first_sample * sample_elements % 4 == 0 for the vector path (both tested).
// Cost:        8 bytes moved and about 20 integer instructions per element: bandwidth-bound.
// Determinism: bitwise. Reference: common/arithmetic/philox.h and the CPU's dropout, tolerance 0.
cudaError_t ApplyDropout(cudaStream_t stream, const DropoutArgs& args, const float* in, float* out);

}  // namespace starring::cuda

#endif  // STARRING_KERNELS_CUDA_DROPOUT_H_
