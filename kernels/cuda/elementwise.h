// Element by element over flat arrays. All:
//   Shapes:      (count) float32, contiguous; the output may alias an input.
//   Writes:      the output is overwritten (=), but for Accumulate (+=).
//   Launch:      256 threads a block, one thread per 4 elements, no shared memory.
//   Requires:    count >= 0; 16-byte alignment for the vector path, scalar path otherwise (both tested).
//   Cost:        each input read once, the output written once, one operation per element: bandwidth-bound.
//   Determinism: bitwise. Reference: the CPU's, tolerance 0.
//
// Each enqueues on `stream` and returns the error of the launch.
#ifndef STARRING_KERNELS_CUDA_ELEMENTWISE_H_
#define STARRING_KERNELS_CUDA_ELEMENTWISE_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace starring::cuda {

// y = x where x >= 0 or NaN, else 0.
cudaError_t Relu(cudaStream_t stream, const float* x, float* y, int64_t count);
// dx = dy where y > 0, else 0.
cudaError_t ReluBackward(cudaStream_t stream, const float* y, const float* dy, float* dx, int64_t count);
// y = a + b; with the ReLU of a residual join in the same pass.
cudaError_t Add(cudaStream_t stream, const float* a, const float* b, float* y, int64_t count);
cudaError_t AddRelu(cudaStream_t stream, const float* a, const float* b, float* y, int64_t count);
// dx = a + b where y > 0, else 0: the gradients of a ReLU's two readers and its mask in one pass.
cudaError_t AddReluBackward(cudaStream_t stream, const float* y, const float* a, const float* b, float* dx,
                            int64_t count);
// y += x.
cudaError_t Accumulate(cudaStream_t stream, const float* x, float* y, int64_t count);

}  // namespace starring::cuda

#endif  // STARRING_KERNELS_CUDA_ELEMENTWISE_H_
