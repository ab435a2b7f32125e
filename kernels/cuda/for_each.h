// A kernel over the elements of flat arrays, four neighbours at a time.
//
// Device code of .cu files.
#ifndef STARRING_KERNELS_CUDA_FOR_EACH_H_
#define STARRING_KERNELS_CUDA_FOR_EACH_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.h"

namespace starring::cuda {

// body.Run<kWidth>(first) treats elements [first, first + kWidth).
// Launch: one thread per pack of four; the first threads also take the elements that fill no pack.
template <typename Body>
__global__ void __launch_bounds__(kBlockThreads) ForEachKernel(Body body, int64_t packs, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  if (i < packs) body.template Run<kPackFloats>(kPackFloats * i);
  const int64_t single = kPackFloats * packs + i;
  if (single < count) body.template Run<1>(single);
}

template <typename Body>
cudaError_t ForEach(cudaStream_t stream, int64_t count, Alignment alignment, const Body& body) {
  const int64_t packs = alignment == Alignment::kPacks ? count / kPackFloats : 0;
  const int64_t threads = std::max(packs, count - kPackFloats * packs);
  return Launch(stream, {.blocks = CeilDivide(threads, kBlockThreads)}, ForEachKernel<Body>, body, packs, count);
}

template <typename Body, typename... Pointers>
cudaError_t ForEach(cudaStream_t stream, int64_t count, const Body& body, const Pointers*... pointers) {
  return ForEach(stream, count, AlignedForPacks(pointers...) ? Alignment::kPacks : Alignment::kElements, body);
}

}  // namespace starring::cuda

#endif  // STARRING_KERNELS_CUDA_FOR_EACH_H_
