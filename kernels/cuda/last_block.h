// How the blocks of a kernel find out which of them ends last, to add up what they all left in memory: a second kernel
// for that would be one more node of the step's graph, and would wait for the first one's slowest block and a launch.
//
// Device code of .cu files.
#ifndef STARRING_KERNELS_CUDA_LAST_BLOCK_H_
#define STARRING_KERNELS_CUDA_LAST_BLOCK_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace starring::cuda {

// Whether this block is the last of `count` to call with this counter; if so, it sees all that the others wrote before
// they called. Every thread of the block calls. The counter is 0 before the first call and again after the last, so
// that the next launch, or the next replay of a graph, needs no memset.
//
// The barrier before the fence makes the fence cover what other threads of the block wrote; the fence after the
// increment keeps the last block from reading what its multiprocessor's cache held earlier.
__device__ inline bool IsLastBlock(unsigned* counter, int64_t count) {
  __shared__ bool is_last;
  __syncthreads();
  if (threadIdx.x == 0) {
    const auto last = static_cast<unsigned>(count - 1);
    __threadfence();
    is_last = atomicInc(counter, last) == last;
    __threadfence();
  }
  __syncthreads();
  return is_last;
}

}  // namespace starring::cuda

#endif  // STARRING_KERNELS_CUDA_LAST_BLOCK_H_
