// Notes when the GPU has come to a point of a stream.
#ifndef STARRING_KERNELS_CUDA_STAMP_H_
#define STARRING_KERNELS_CUDA_STAMP_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace starring::cuda {

// *place = the nanoseconds of the GPU's clock, %globaltimer, which all streams and processes of a GPU share.
// Shapes:      one number.
// Writes:      *place is overwritten (=).
// Launch:      one block of one thread.
// Requires:    `place` is device memory, or pinned memory, to which the write is posted.
// Cost:        one launch, some 1.5 us in a graph (expected); the clock moves in steps of 32 ns or, on older GPUs,
//              1 us.
// Determinism: none: it is a clock. Reference: the host's clock around it.
[[nodiscard]] cudaError_t Stamp(cudaStream_t stream, uint64_t* place);

}  // namespace starring::cuda

#endif  // STARRING_KERNELS_CUDA_STAMP_H_
