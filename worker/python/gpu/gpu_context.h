// One GPU of this process, for sums in GPU memory: its primary context, which PyTorch uses too, the kernels of
// gpu_sums.h, and memory. Pointers to device memory are `std::byte*`, and no host code reads through them.
//
// Thread safety: immutable. Every call but those of Scope needs the context to be the calling thread's.
#ifndef STARRING_WORKER_PYTHON_GPU_GPU_CONTEXT_H_
#define STARRING_WORKER_PYTHON_GPU_GPU_CONTEXT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/reduce/arrays/element_sum.h"
#include "worker/python/gpu/cuda_driver.h"
#include "worker/python/gpu/gpu_sums.h"

namespace starring {

class GpuContext {
 public:
  // `ordinal` counts the GPUs that this process sees. `image` is that of gpu_image.h. Unavailable with the reason why
  // this process has no such GPU, no driver or no kernels.
  static absl::StatusOr<std::unique_ptr<GpuContext>> Create(int ordinal, std::span<const unsigned char> image);
  ~GpuContext();
  GpuContext(const GpuContext&) = delete;
  GpuContext& operator=(const GpuContext&) = delete;

  // Makes the context the calling thread's. Scope gives the thread its former one back.
  absl::Status MakeCurrent() const;
  class Scope {
   public:
    explicit Scope(const GpuContext& context);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    const absl::Status& status() const { return status_; }

   private:
    const GpuContext& context_;
    absl::Status status_;
  };

  // Memory that other processes can map; `size_bytes` is a multiple of 2 MiB.
  absl::StatusOr<std::byte*> Allocate(int64_t size_bytes) const;
  void Free(std::byte* memory) const;
  // The bytes that name such memory to other processes, and the memory that they name.
  absl::StatusOr<std::string> Export(const std::byte* memory) const;
  absl::StatusOr<std::byte*> Open(const std::string& name) const;
  void Close(std::byte* memory) const;

  // Recorded in `stream`, one of the process's: its work until now. DestroyEvent once a stream of ours waits for it.
  absl::StatusOr<CudaDriver::Event> RecordEvent(CudaDriver::Stream stream) const;
  void DestroyEvent(CudaDriver::Event event) const;

  // Enqueue on `stream`.
  absl::Status Wait(CudaDriver::Event event, CudaDriver::Stream stream) const;
  absl::Status CopyOnDevice(const std::byte* from, std::byte* to, int64_t size_bytes, CudaDriver::Stream stream) const;
  absl::Status Sum(ElementType type, const GpuStarSum& sum, CudaDriver::Stream stream) const;
  absl::Status Add(ElementType type, const GpuRingAdd& add, CudaDriver::Stream stream) const;
  absl::Status Copy(ElementType type, const GpuRingCopy& copy, CudaDriver::Stream stream) const;

  // Do the copy before they return.
  absl::Status CopyToDevice(const void* from, std::byte* to, int64_t size_bytes, CudaDriver::Stream stream) const;
  absl::Status CopyToHost(const std::byte* from, void* to, int64_t size_bytes, CudaDriver::Stream stream) const;

  const CudaDriver& driver() const { return driver_; }

 private:
  explicit GpuContext(const CudaDriver& driver) : driver_(driver) {}
  absl::Status FindKernels(std::span<const unsigned char> image);
  absl::Status Launch(CudaDriver::Function kernel, int64_t elements, const void* argument,
                      CudaDriver::Stream stream) const;

  const CudaDriver driver_;
  CudaDriver::Device device_ = -1;  // -1: the context is not retained
  CudaDriver::Context context_ = nullptr;
  CudaDriver::Module module_ = nullptr;
  CudaDriver::Function star_sums_[kElementTypeCount] = {};
  CudaDriver::Function ring_adds_[kElementTypeCount] = {};
  CudaDriver::Function ring_copies_[kElementTypeCount] = {};
};

}  // namespace starring

#endif  // STARRING_WORKER_PYTHON_GPU_GPU_CONTEXT_H_
