// CudaStream, CudaEvent and CudaVectorMath of cuda_device.h, over CUDA's own streams and events.
//
// `ordinal` is the GPU, whatever the calling thread's current one is. `watch` outlives what it is given to and may be
// null.
#ifndef STARRING_KERNELS_CUDA_CUDA_STREAM_H_
#define STARRING_KERNELS_CUDA_CUDA_STREAM_H_

#include <cuda_runtime.h>

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_watch.h"
#include "kernels/cuda/peer_update.h"

namespace starring {

[[nodiscard]] absl::StatusOr<std::unique_ptr<CudaEvent>> CreateCudaEvent(int ordinal, CudaWatch* watch);

class OwnedCudaStream : public CudaStream {
 public:
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<OwnedCudaStream>> Create(int ordinal, CudaWatch* watch);
  ~OwnedCudaStream() override;

  absl::Status Record(CudaEvent* event) override;
  absl::Status Wait(CudaEvent* event) override;
  absl::Status CopyToDevice(const void* host, void* device, int64_t size_bytes) override;
  absl::Status CopyToHost(const void* device, void* host, int64_t size_bytes) override;
  absl::Status CopyOnDevice(const void* from, void* to, int64_t size_bytes) override;
  absl::Status Synchronize() override;

  void* native() override { return stream_; }

  cudaStream_t get() const { return stream_; }
  absl::Status BeginCapture();
  absl::StatusOr<cudaGraph_t> EndCapture();  // the caller destroys it
  // Work queued from now on follows the work that is on `other`, by means of `event`, which is used for nothing else.
  // If `other` is being captured, this stream is captured too until EndBranch.
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

[[nodiscard]] absl::StatusOr<std::unique_ptr<CudaVectorMath>> CreateCudaVectorMath(int ordinal, CudaWatch* watch);

// The kernel's arguments. REQUIRES: what CudaPeerUpdate says, or the process ends.
[[nodiscard]] cuda::PeerUpdateArgs PeerUpdateOf(const OptimizerConfig& config, const CudaPeerUpdate& update);

// CudaDevice::ApplyOptimizer on `stream`. The factors are those of `bound`, device memory, unless it is null. Gradients
// that are not finite are noted in `result`, device memory, unless it is null.
[[nodiscard]] cudaError_t EnqueueUpdate(cudaStream_t stream, const OptimizerConfig& config, const UpdateArgs& args,
                                        const CudaStepValues* bound, CudaStepResult* result);

}  // namespace starring

#endif  // STARRING_KERNELS_CUDA_CUDA_STREAM_H_
