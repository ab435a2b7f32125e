// One process's GPU: a stream, the pair's board as the device sees it, and the functions of the driver that the CUDA
// runtime lacks.
//
// libcuda.so.1 is opened by dlopen, so a machine without a driver is told so by a status and not by the loader.
//
// Thread safety: none.
#ifndef STARRING_BENCH_GPU_WAIT_SPIKE_GPU_H_
#define STARRING_BENCH_GPU_WAIT_SPIKE_GPU_H_

#include <cuda.h>
#include <cuda_runtime.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/gpu_wait_spike/kernels.h"
#include "bench/gpu_wait_spike/pair.h"

namespace starring::gpu_wait {

// OK, or Internal with `function`, CUDA's name of the error and its text.
absl::Status CudaStatus(cudaError_t error, const char* function);

struct DriverLibrary {
  // Unavailable, with the loader's text or the missing function's name.
  static absl::StatusOr<DriverLibrary> Load();
  absl::Status StatusOf(CUresult result, const char* function) const;

  decltype(&::cuDeviceGet) device_get = nullptr;
  decltype(&::cuDeviceGetAttribute) device_get_attribute = nullptr;
  decltype(&::cuGetErrorName) get_error_name = nullptr;
  decltype(&::cuGetErrorString) get_error_string = nullptr;
  decltype(&::cuMemGetAddressRange) mem_get_address_range = nullptr;
  decltype(&::cuStreamBatchMemOp) stream_batch_mem_op = nullptr;
};

// A word at which streams wait for a value. `host` is null for memory of the device.
struct Word {
  uint64_t* device = nullptr;
  uint64_t* host = nullptr;
};

class Gpu {
 public:
  // Uses GPU 0. `peer` outlives it. Unavailable where there is no GPU.
  static absl::StatusOr<std::unique_ptr<Gpu>> Open(Peer* peer);

  // Gives up the work that is still enqueued. The process is about to end, which frees the memory.
  ~Gpu() = default;
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  cudaStream_t stream() const { return stream_; }
  const DriverLibrary& driver() const { return driver_; }
  int multiprocessors() const { return multiprocessors_; }
  Word BoardWordOf(BoardWord which);
  absl::StatusOr<int> Attribute(CUdevice_attribute attribute) const;

  // Device memory of this process, zeroed.
  absl::StatusOr<void*> Allocate(int64_t bytes);

  // Enqueue on stream(), also while it is captured.
  absl::Status WaitByMemoryOperation(const Word& word, uint64_t value);
  absl::Status WriteByMemoryOperation(const Word& word, uint64_t value);
  absl::Status WaitByKernel(const Word& word, uint64_t value);

  // Returns when the stream is idle. At the deadline, or where the other process fails, it sets the `awaited` words to
  // all values that a stream may wait for until the stream is idle, and fails.
  absl::Status Drain(const std::vector<Word>& awaited, std::chrono::milliseconds deadline);

 private:
  Gpu(Peer* peer, DriverLibrary driver) : peer_(peer), driver_(driver) {}
  absl::Status Start();
  absl::Status Release(const std::vector<Word>& awaited);
  absl::StatusOr<bool> IsIdle();

  Peer* const peer_;
  const DriverLibrary driver_;
  cudaStream_t stream_ = nullptr;
  cudaStream_t release_stream_ = nullptr;  // works while stream_ waits
  uint64_t* board_ = nullptr;              // as the device sees it
  uint64_t* gave_up_ = nullptr;
  CUdevice device_ = 0;
  int multiprocessors_ = 0;
  bool has_64_bits_ = false;
  bool flushes_ = false;
};

// The values at which streams wait in turn: 1 to kPeriod.
inline constexpr uint64_t kPeriod = 4;

}  // namespace starring::gpu_wait

#endif  // STARRING_BENCH_GPU_WAIT_SPIKE_GPU_H_
