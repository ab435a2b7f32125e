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

// CudaDevice::Export and OpenShared for the current GPU.
[[nodiscard]] absl::StatusOr<std::string> ExportCudaMemory(void* data);
[[nodiscard]] absl::StatusOr<std::unique_ptr<DeviceBuffer>> OpenCudaMemory(const std::string& handle,
                                                                           int64_t size_bytes, CudaWatch* watch);

}  // namespace starring

#endif  // STARRING_KERNELS_CUDA_CUDA_PEER_MEMORY_H_
