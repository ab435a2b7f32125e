#include "kernels/cuda/cuda_peer_memory.h"

#include <cuda_runtime.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/cuda/cuda_memory.h"

namespace starring {
namespace {

class OpenedMemory final : public DeviceBuffer {
 public:
  OpenedMemory(CudaWatch* watch, void* data, int64_t size_bytes)
      : watch_(watch), data_(data), size_bytes_(size_bytes) {}
  ~OpenedMemory() override {
    const CudaWatch::Call call(watch_, "unmapping another process's GPU memory");
    cudaIpcCloseMemHandle(data_);
  }
  void* data() override { return data_; }
  int64_t size_bytes() const override { return size_bytes_; }

 private:
  CudaWatch* const watch_;
  void* const data_;
  const int64_t size_bytes_;
};

// A failure has a caller that goes on without shared memory: the next launch must not report it.
absl::Status StatusOfAttempt(cudaError_t error, const char* what) {
  if (error != cudaSuccess) cudaGetLastError();
  const absl::Status status = CudaStatus(error, what);
  // The caller's way out is another one then. Mapping needs memory for tables.
  if (error == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(status.message());
  return status;
}

}  // namespace

absl::StatusOr<std::string> ExportCudaMemory(void* data) {
  cudaIpcMemHandle_t handle;
  RETURN_IF_ERROR(StatusOfAttempt(cudaIpcGetMemHandle(&handle, data), "sharing GPU memory"));
  return std::string(reinterpret_cast<const char*>(&handle), sizeof(handle));
}

absl::StatusOr<std::unique_ptr<DeviceBuffer>> OpenCudaMemory(const std::string& handle, int64_t size_bytes,
                                                             CudaWatch* watch) {
  cudaIpcMemHandle_t opened;
  if (handle.size() != sizeof(opened)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a handle of GPU memory has ", sizeof(opened), " bytes, and not ", handle.size()));
  }
  std::memcpy(&opened, handle.data(), sizeof(opened));
  void* data = nullptr;
  const CudaWatch::Call call(watch, "mapping another process's GPU memory");
  RETURN_IF_ERROR(StatusOfAttempt(cudaIpcOpenMemHandle(&data, opened, cudaIpcMemLazyEnablePeerAccess),
                                  "mapping another process's GPU memory"));
  return std::make_unique<OpenedMemory>(watch, data, size_bytes);
}

}  // namespace starring
