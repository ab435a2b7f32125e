// Element by element over flat arrays: ReLU, sums, casts, and dropout.
//
// Tensors of a call have the same elements, but for Cast's; otherwise the error is cudaErrorInvalidValue.
// Each function enqueues on `stream` and returns the error of the launch. Those before ApplyDropout have in common:
// Shapes:      (count), contiguous; the output may alias an input, but for Cast's.
// Writes:      the output is overwritten (=).
// Launch:      256 threads a block, one thread per 16 bytes, no shared memory.
// Requires:    count >= 0; 16-byte alignment for the vector path, scalar path otherwise (both tested).
// Cost:        each input read once, the output written once, one operation per element: bandwidth-bound.
// Determinism: bitwise. Reference: the CPU's, tolerance 0.
#ifndef STARRING_KERNELS_CUDA_ELEMENTWISE_H_
#define STARRING_KERNELS_CUDA_ELEMENTWISE_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/step_values.h"
#include "kernels/element.h"

namespace starring::cuda {

// y = x where x >= 0 or NaN, else 0.
[[nodiscard]] cudaError_t Relu(cudaStream_t stream, ConstElements x, Elements y, int64_t count);
// dx = dy where y > 0, else 0.
[[nodiscard]] cudaError_t ReluBackward(cudaStream_t stream, ConstElements y, ConstElements dy, Elements dx,
                                       int64_t count);
// y = a + b.
[[nodiscard]] cudaError_t Add(cudaStream_t stream, ConstElements a, ConstElements b, Elements y, int64_t count);
// y = relu(a + b): the ReLU of a residual join in the same pass.
[[nodiscard]] cudaError_t AddRelu(cudaStream_t stream, ConstElements a, ConstElements b, Elements y, int64_t count);
// dx = a + b where y > 0, else 0: the gradients of a ReLU's two readers, added and masked in one pass.
[[nodiscard]] cudaError_t AddReluBackward(cudaStream_t stream, ConstElements y, ConstElements a, ConstElements b,
                                          Elements dx, int64_t count);
// to = from, rounded, where one is float32 and the other is not: a thread per 8 elements.
[[nodiscard]] cudaError_t Cast(cudaStream_t stream, ConstElements from, Elements to, int64_t count);

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

// out[e] = in[e] * scale where Philox word (first_sample * sample_elements + e) is kept, else 0: the CPU's mask, bit by
// bit. Forward and backward are this same function: computing the mask again costs less than moving it through memory.
// Shapes:      in, out: (count); out may alias in.
// Writes:      out is overwritten (=).
// Launch:      256 threads a block, one thread per four words of one Philox counter, no shared memory.
// Requires:    count >= 0; 16-byte alignment and first_sample * sample_elements % 4 == 0 for the vector path, scalar
//              path otherwise (both tested).
// Cost:        2 elements moved and about 20 integer instructions for each: bandwidth-bound.
// Determinism: bitwise. Reference: common/arithmetic/philox.h and the CPU's dropout, tolerance 0.
[[nodiscard]] cudaError_t ApplyDropout(cudaStream_t stream, const DropoutArgs& args, ConstElements in, Elements out);

}  // namespace starring::cuda

#endif  // STARRING_KERNELS_CUDA_ELEMENTWISE_H_
