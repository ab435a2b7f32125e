// CudaStream and CudaEvent of cuda_device.h over CUDA's own.
#ifndef STARRING_KERNELS_CUDA_CUDA_STREAM_H_
#define STARRING_KERNELS_CUDA_CUDA_STREAM_H_

#include <cuda_runtime.h>

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_watch.h"

namespace starring {

// On the GPU `ordinal`, whatever the calling thread's current one is. `watch`, here and below, outlives what it is
// given to and may be null.
absl::StatusOr<std::unique_ptr<CudaEvent>> CreateCudaEvent(int ordinal, CudaWatch* watch);

class OwnedCudaStream : public CudaStream {
 public:
  static absl::StatusOr<std::unique_ptr<OwnedCudaStream>> Create(int ordinal, CudaWatch* watch);
  ~OwnedCudaStream() override;

  absl::Status Record(CudaEvent* event) override;
  absl::Status Wait(CudaEvent* event) override;
  absl::Status CopyToDevice(const void* host, void* device, int64_t size_bytes) override;
  absl::Status CopyToHost(const void* device, void* host, int64_t size_bytes) override;
  absl::Status CopyOnDevice(const void* from, void* to, int64_t size_bytes) override;
  absl::Status Synchronize() override;

  cudaStream_t get() const { return stream_; }
  absl::Status BeginCapture();
  absl::StatusOr<cudaGraph_t> EndCapture();  // the caller's to destroy
  // What is queued from now on follows what is on `other`, by `event`, which is used for nothing else. If `other` is
  // captured, so is this stream from now on, and until EndBranch.
  absl::Status Follow(OwnedCudaStream* other, CudaEvent* event);
  void EndBranch() { captures_ = false; }

 private:
  absl::Status Copy(const void* from, void* to, int64_t size_bytes, cudaMemcpyKind kind, const char* what);
  OwnedCudaStream(int ordinal, CudaWatch* watch, cudaStream_t stream)
      : ordinal_(ordinal), watch_(watch), stream_(stream) {}

  const int ordinal_;
  CudaWatch* const watch_;
  const cudaStream_t stream_;
  bool captures_ = false;
};

}  // namespace starring

#endif  // STARRING_KERNELS_CUDA_CUDA_STREAM_H_
