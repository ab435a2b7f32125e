// Memory of the GPU and memory that it can reach, owned; and CUDA's errors as statuses. `watch`, wherever it is taken,
// watches the calls that allocate and free, outlives the memory, and may be null: those calls are then not watched.
//
// Thread safety: one thread.
#ifndef STARRING_KERNELS_CUDA_CUDA_MEMORY_H_
#define STARRING_KERNELS_CUDA_CUDA_MEMORY_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_watch.h"

namespace starring {

// Internal with CUDA's own text and `what` was tried; OK for cudaSuccess.
absl::Status CudaStatus(cudaError_t error, const char* what);

class CudaMemory {
 public:
  // Not initialised, 256-byte aligned. ResourceExhausted with the number of bytes, and those that are free, when it
  // does not fit.
  [[nodiscard]] static absl::StatusOr<CudaMemory> Create(int64_t size_bytes, CudaWatch* watch = nullptr);
  CudaMemory() = default;
  CudaMemory(CudaMemory&&) = default;
  CudaMemory& operator=(CudaMemory&&) = default;

  void* data() const { return data_.get(); }
  float* floats() const { return static_cast<float*>(data()); }
  int64_t size_bytes() const { return size_bytes_; }

 private:
  struct Free {
    CudaWatch* watch;
    void operator()(void* data) const {
      const CudaWatch::Call call(watch, "freeing GPU memory");
      cudaFree(data);
    }
  };
  std::unique_ptr<void, Free> data_{nullptr, Free{nullptr}};
  int64_t size_bytes_ = 0;
};

// Host memory that the GPU reads and writes directly.
class PinnedMemory {
 public:
  // Not initialised, page-aligned. ResourceExhausted with the number of bytes when there is no such memory.
  [[nodiscard]] static absl::StatusOr<PinnedMemory> Create(int64_t size_bytes, CudaWatch* watch = nullptr);
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

// Temporary memory that the operations of one device share: each uses it between the start of a call and its end, and
// the stream keeps calls in order.
class CudaScratch {
 public:
  explicit CudaScratch(CudaWatch* watch = nullptr) : watch_(watch) {}
  // Grows to `size_bytes`. The memory from before stays allocated, because a captured graph may hold its address.
  absl::Status Reserve(int64_t size_bytes);
  int64_t size_bytes() const;  // of all memory that is allocated
  // As many bytes as the largest Reserve asked for.
  float* floats() const { return blocks_.empty() ? nullptr : blocks_.back().floats(); }

 private:
  CudaWatch* watch_;
  std::vector<CudaMemory> blocks_;  // each larger than the one before
};

// Counters by which kernels find their last block (launch.h): 0 whenever no kernel runs, so that the operations of
// one stream may share them.
class CudaCounters {
 public:
  explicit CudaCounters(CudaWatch* watch = nullptr) : watch_(watch) {}
  // At least `count` counters, set to 0 by work on `stream`. The memory from before stays, as CudaScratch's.
  absl::Status Reserve(cudaStream_t stream, int64_t count);
  unsigned* data() const { return blocks_.empty() ? nullptr : static_cast<unsigned*>(blocks_.back().data()); }

 private:
  CudaWatch* watch_;
  std::vector<CudaMemory> blocks_;  // each larger than the one before
};

}  // namespace starring

#endif  // STARRING_KERNELS_CUDA_CUDA_MEMORY_H_
