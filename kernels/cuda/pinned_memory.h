// Host memory that the GPU reads and writes directly, owned.
//
// Thread safety: immutable; who writes to the memory sees to that.
#ifndef STARRING_KERNELS_CUDA_PINNED_MEMORY_H_
#define STARRING_KERNELS_CUDA_PINNED_MEMORY_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_watch.h"

namespace starring {

class PinnedMemory {
 public:
  // Not initialised, page-aligned. ResourceExhausted with the number of bytes when there is no such memory. `watch`, of
  // the calls that allocate and free, outlives the memory; null: nobody looks.
  static absl::StatusOr<PinnedMemory> Create(int64_t size_bytes, CudaWatch* watch = nullptr);
  PinnedMemory(PinnedMemory&&) = default;

  void* data() const { return data_.get(); }
  int64_t size_bytes() const { return size_bytes_; }

 private:
  struct Free {
    CudaWatch* watch;
    void operator()(void* data) const {
      const CudaWatch::Call call(watch, "freeing pinned memory");
      cudaFreeHost(data);
    }
  };
  PinnedMemory() = default;
  std::unique_ptr<void, Free> data_{nullptr, Free{nullptr}};
  int64_t size_bytes_ = 0;
};

}  // namespace starring

#endif  // STARRING_KERNELS_CUDA_PINNED_MEMORY_H_
