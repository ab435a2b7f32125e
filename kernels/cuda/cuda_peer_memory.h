// GPU memory that several processes of one host map, by CUDA's IPC.
//
// Thread safety: one thread.
#ifndef STARRING_KERNELS_CUDA_CUDA_PEER_MEMORY_H_
#define STARRING_KERNELS_CUDA_CUDA_PEER_MEMORY_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_watch.h"
#include "kernels/device.h"

namespace starring {

// A handle names the block in which CUDA put an allocation. Allocations of whole units have blocks of their own, so
// their handles share nothing else.
inline constexpr int64_t kCudaSharedUnitBytes = int64_t{2} << 20;
constexpr int64_t CudaSharedBytes(int64_t size_bytes) {
  return (size_bytes + kCudaSharedUnitBytes - 1) / kCudaSharedUnitBytes * kCudaSharedUnitBytes;
}

// CudaDevice::Export and OpenShared for the current GPU.
[[nodiscard]] absl::StatusOr<std::string> ExportCudaMemory(void* data);
[[nodiscard]] absl::StatusOr<std::unique_ptr<DeviceBuffer>> OpenCudaMemory(const std::string& handle,
                                                                           int64_t size_bytes, CudaWatch* watch);

}  // namespace starring

#endif  // STARRING_KERNELS_CUDA_CUDA_PEER_MEMORY_H_
