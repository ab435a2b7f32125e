// The one way in which a kernel is launched. `<<<>>>` is nvcc's own syntax: through a function, the same .cu files are
// C++ that a host compiler accepts, and tests/cuda_emulation runs them on machines without a GPU.
//
// Host code of .cu files only.
#ifndef STARRING_KERNELS_CUDA_LAUNCH_H_
#define STARRING_KERNELS_CUDA_LAUNCH_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

namespace starring::cuda {

// Threads of a block, unless a kernel says otherwise: enough warps to hide memory, few enough for any register count.
inline constexpr int kBlockThreads = 256;

struct LaunchShape {
  int64_t blocks = 0;    // along x: at most 2^31 - 1
  int64_t blocks_y = 1;  // at most 65535
  int threads = kBlockThreads;
};

constexpr int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Enqueues kernel(arguments...) on `stream`. Nothing happens where there is nothing to do (blocks == 0). The error is
// that of the launch; what goes wrong in a kernel is reported by the stream's next synchronisation.
template <typename... Parameters, typename... Arguments>
cudaError_t Launch(cudaStream_t stream, const LaunchShape& shape, void (*kernel)(Parameters...),
                   Arguments&&... arguments) {
  if (shape.blocks == 0 || shape.blocks_y == 0) return cudaSuccess;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks), static_cast<unsigned>(shape.blocks_y));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

}  // namespace starring::cuda

#endif  // STARRING_KERNELS_CUDA_LAUNCH_H_
