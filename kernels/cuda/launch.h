// How a kernel is launched, how one runs over flat arrays, and how its blocks find out which of them ends last.
//
// `<<<>>>` is nvcc's own syntax. Launched through a function, the same .cu files are C++ that a host compiler accepts,
// and tests/cuda_emulation runs them on machines without a GPU.
//
// Host code and device code of .cu files only.
#ifndef STARRING_KERNELS_CUDA_LAUNCH_H_
#define STARRING_KERNELS_CUDA_LAUNCH_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "kernels/cuda/pack.h"

namespace starring::cuda {

// Threads of a block, unless a kernel says otherwise: enough warps to hide the latency of memory, and few enough for
// any number of registers.
inline constexpr int kBlockThreads = 256;

struct LaunchShape {
  int64_t blocks = 0;    // along x: at most 2^31 - 1
  int64_t blocks_y = 1;  // at most 65535
  int threads = kBlockThreads;
};

constexpr int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Enqueues kernel(arguments...) on `stream`; enqueues nothing where there is nothing to do (blocks == 0). The error is
// that of the launch; the stream's next synchronisation reports what goes wrong in the kernel.
template <typename... Parameters, typename... Arguments>
[[nodiscard]] cudaError_t Launch(cudaStream_t stream, const LaunchShape& shape, void (*kernel)(Parameters...),
                                 Arguments&&... arguments) {
  if (shape.blocks == 0 || shape.blocks_y == 0) return cudaSuccess;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks), static_cast<unsigned>(shape.blocks_y));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

// A kernel over the elements of flat arrays: body.Run<kWidth>(first) treats elements [first, first + kWidth).
// Launch: one thread per pack of kPack; the first threads also take the elements that fill no pack.
template <int kPack, typename Body>
__global__ void __launch_bounds__(kBlockThreads) ForEachKernel(Body body, int64_t packs, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  if (i < packs) body.template Run<kPack>(kPack * i);
  const int64_t single = kPack * packs + i;
  if (single < count) body.template Run<1>(single);
}

// kElements: every element alone.
template <int kPack = kPackFloats, typename Body>
[[nodiscard]] cudaError_t ForEach(cudaStream_t stream, int64_t count, Alignment alignment, const Body& body) {
  const int64_t packs = alignment == Alignment::kPacks ? count / kPack : 0;
  const int64_t threads = std::max(packs, count - kPack * packs);
  return Launch(stream, {.blocks = CeilDivide(threads, kBlockThreads)}, ForEachKernel<kPack, Body>, body, packs, count);
}

// In packs if all `pointers`, which are those that the body uses, allow it.
template <int kPack = kPackFloats, typename Body, typename... Pointers>
[[nodiscard]] cudaError_t ForEach(cudaStream_t stream, int64_t count, const Body& body, const Pointers*... pointers) {
  return ForEach<kPack>(stream, count, AlignedForPacks(pointers...) ? Alignment::kPacks : Alignment::kElements, body);
}

// Whether this block is the last of `count` blocks to call with this counter; the last one sees everything that the
// others wrote before they called, and can add it up. A second kernel for that would be one more node of the step's
// graph, and would wait for the first one's slowest block and for a launch.
//
// Every thread of the block calls. The counter is 0 before the first call and again after the last, so that the next
// launch, or the next replay of a graph, needs no memset.
__device__ inline bool IsLastBlock(unsigned* counter, int64_t count) {
  __shared__ bool is_last;
  // Without this barrier the fence below would cover what thread 0 wrote, but not what the other threads did.
  __syncthreads();
  if (threadIdx.x == 0) {
    const auto last = static_cast<unsigned>(count - 1);
    __threadfence();
    is_last = atomicInc(counter, last) == last;
    // Without this fence the last block might read what its multiprocessor's cache held earlier.
    __threadfence();
  }
  __syncthreads();
  return is_last;
}

}  // namespace starring::cuda

#endif  // STARRING_KERNELS_CUDA_LAUNCH_H_
