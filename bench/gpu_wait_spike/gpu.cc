#include "bench/gpu_wait_spike/gpu.h"

#include <dlfcn.h>

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace starring::gpu_wait {
namespace {

using Clock = std::chrono::steady_clock;

// Less than the deadlines of the parts (3 s and 4 s). So Drain still finds the stream idle, and names the kernel.
constexpr uint64_t kSpinLimitNs = 2'000'000'000;
// Less than kGrace of pair.cc (2 s), so a process that is told to end still leaves its report before it is killed.
constexpr std::chrono::milliseconds kReleaseLimit{1500};
// How long an awaited word keeps each value: some polls over PCIe.
constexpr std::chrono::microseconds kReleaseHold{100};

template <typename Function>
absl::Status Find(void* library, const char* name, Function* function) {
  // POSIX allows this cast of dlsym's result. C++ leaves it to the implementation.
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("libcuda.so.1 has no ", name));
}

}  // namespace

absl::Status CudaStatus(cudaError_t error, const char* function) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(function, ": ", cudaGetErrorName(error), ": ", cudaGetErrorString(error)));
}

absl::StatusOr<DriverLibrary> DriverLibrary::Load() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) return absl::UnavailableError(dlerror());
  DriverLibrary table;
  // The headers' macros choose these versions, whose types the members have.
  RETURN_IF_ERROR(Find(library, "cuDeviceGet", &table.device_get));
  RETURN_IF_ERROR(Find(library, "cuDeviceGetAttribute", &table.device_get_attribute));
  RETURN_IF_ERROR(Find(library, "cuGetErrorName", &table.get_error_name));
  RETURN_IF_ERROR(Find(library, "cuGetErrorString", &table.get_error_string));
  RETURN_IF_ERROR(Find(library, "cuMemGetAddressRange_v2", &table.mem_get_address_range));
  RETURN_IF_ERROR(Find(library, "cuStreamBatchMemOp_v2", &table.stream_batch_mem_op));
  return table;
}

absl::Status DriverLibrary::StatusOf(CUresult result, const char* function) const {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  const char *name = nullptr, *text = nullptr;
  get_error_name(result, &name);
  get_error_string(result, &text);
  return absl::InternalError(absl::StrCat(function, ": ", name != nullptr ? name : absl::StrCat(result).c_str(), ": ",
                                          text != nullptr ? text : "no text"));
}

absl::StatusOr<std::unique_ptr<Gpu>> Gpu::Open(Peer* peer) {
  ASSIGN_OR_RETURN(const DriverLibrary driver, DriverLibrary::Load());
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0) {
    return absl::UnavailableError(error == cudaSuccess ? "the driver shows none"
                                                       : absl::StrCat("cudaGetDeviceCount: ", cudaGetErrorName(error),
                                                                      ": ", cudaGetErrorString(error)));
  }
  std::unique_ptr<Gpu> gpu(new Gpu(peer, driver));
  RETURN_IF_ERROR(gpu->Start());
  return gpu;
}

absl::Status Gpu::Start() {
  RETURN_IF_ERROR(CudaStatus(cudaSetDevice(0), "cudaSetDevice"));
  // Non-blocking streams are not ordered with the default stream, whose copies would otherwise wait for a waiting
  // stream.
  RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"));
  RETURN_IF_ERROR(
      CudaStatus(cudaStreamCreateWithFlags(&release_stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"));
  auto* const board = &peer_->pages().board;
  RETURN_IF_ERROR(CudaStatus(cudaHostRegister(board, sizeof(*board), cudaHostRegisterMapped), "cudaHostRegister"));
  void* mapped = nullptr;
  RETURN_IF_ERROR(CudaStatus(cudaHostGetDevicePointer(&mapped, board, 0), "cudaHostGetDevicePointer"));
  board_ = static_cast<uint64_t*>(mapped);
  ASSIGN_OR_RETURN(void* const gave_up, Allocate(sizeof(uint64_t)));
  gave_up_ = static_cast<uint64_t*>(gave_up);
  RETURN_IF_ERROR(driver_.StatusOf(driver_.device_get(&device_, 0), "cuDeviceGet"));
  ASSIGN_OR_RETURN(multiprocessors_, Attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
  ASSIGN_OR_RETURN(const int wide, Attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS));
  ASSIGN_OR_RETURN(const int flush, Attribute(CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES));
  has_64_bits_ = wide != 0;
  flushes_ = flush != 0;
  return absl::OkStatus();
}

Word Gpu::BoardWordOf(BoardWord which) {
  const size_t index = static_cast<size_t>(which) * 8;
  return {.device = board_ + index, .host = &peer_->pages().board.words[index]};
}

absl::StatusOr<int> Gpu::Attribute(CUdevice_attribute attribute) const {
  int value = 0;
  RETURN_IF_ERROR(driver_.StatusOf(driver_.device_get_attribute(&value, attribute, device_), "cuDeviceGetAttribute"));
  return value;
}

absl::StatusOr<void*> Gpu::Allocate(int64_t bytes) {
  void* memory = nullptr;
  RETURN_IF_ERROR(CudaStatus(cudaMalloc(&memory, static_cast<size_t>(bytes)), "cudaMalloc"));
  RETURN_IF_ERROR(CudaStatus(cudaMemset(memory, 0, static_cast<size_t>(bytes)), "cudaMemset"));
  // The host does not wait for cudaMemset, and stream_ is not ordered with it.
  RETURN_IF_ERROR(CudaStatus(cudaDeviceSynchronize(), "cudaDeviceSynchronize"));
  return memory;
}

absl::Status Gpu::WaitByMemoryOperation(const Word& word, uint64_t value) {
  CUstreamBatchMemOpParams operation = {};
  operation.waitValue.operation = has_64_bits_ ? CU_STREAM_MEM_OP_WAIT_VALUE_64 : CU_STREAM_MEM_OP_WAIT_VALUE_32;
  operation.waitValue.address = reinterpret_cast<CUdeviceptr>(word.device);
  operation.waitValue.value64 = value;  // its lower half is the 32-bit value
  operation.waitValue.flags =
      CU_STREAM_WAIT_VALUE_EQ | (flushes_ ? static_cast<unsigned>(CU_STREAM_WAIT_VALUE_FLUSH) : 0u);
  return driver_.StatusOf(driver_.stream_batch_mem_op(stream_, 1, &operation, 0), "cuStreamBatchMemOp (wait)");
}

absl::Status Gpu::WriteByMemoryOperation(const Word& word, uint64_t value) {
  CUstreamBatchMemOpParams operation = {};
  operation.writeValue.operation = has_64_bits_ ? CU_STREAM_MEM_OP_WRITE_VALUE_64 : CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operation.writeValue.address = reinterpret_cast<CUdeviceptr>(word.device);
  operation.writeValue.value64 = value;
  operation.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
  return driver_.StatusOf(driver_.stream_batch_mem_op(stream_, 1, &operation, 0), "cuStreamBatchMemOp (write)");
}

absl::Status Gpu::WaitByKernel(const Word& word, uint64_t value) {
  return CudaStatus(SpinUntilEqual(stream_, {.word = word.device,
                                             .value = value,
                                             .abort_word = BoardWordOf(BoardWord::kAbort).device,
                                             .gave_up = gave_up_,
                                             .limit_ns = kSpinLimitNs}),
                    "the spinning kernel");
}

absl::StatusOr<bool> Gpu::IsIdle() {
  const cudaError_t error = cudaStreamQuery(stream_);
  if (error == cudaErrorNotReady) return false;
  RETURN_IF_ERROR(CudaStatus(error, "cudaStreamQuery"));
  return true;
}

absl::Status Gpu::Drain(const std::vector<Word>& awaited, std::chrono::milliseconds deadline) {
  // Polls, because cudaStreamSynchronize has no deadline.
  const Clock::time_point end = Clock::now() + deadline;
  while (true) {
    ASSIGN_OR_RETURN(const bool idle, IsIdle());
    if (idle) break;
    if (absl::Status wanted = peer_->StillWanted(); !wanted.ok()) {
      RETURN_IF_ERROR(Release(awaited));
      return wanted;
    }
    if (Clock::now() > end) {
      RETURN_IF_ERROR(Release(awaited), "after ", deadline.count(), " ms without an end");
      return absl::DeadlineExceededError(absl::StrCat("the stream did not become idle in ", deadline.count(), " ms"));
    }
    std::this_thread::yield();
  }
  uint64_t gave_up = 0;
  RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(&gave_up, gave_up_, sizeof(gave_up), cudaMemcpyDefault, stream_), "cudaMemcpyAsync"));
  // The idle stream has this copy alone, so the call needs no deadline.
  RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"));
  if (gave_up != 0) return absl::DeadlineExceededError("a spinning kernel gave up after 2 s");
  return absl::OkStatus();
}

absl::Status Gpu::Release(const std::vector<Word>& awaited) {
  const Clock::time_point end = Clock::now() + kReleaseLimit;
  while (Clock::now() < end) {
    // Release does not know at which wait the stream is. Waits compare for equality, so every value is shown in turn.
    for (uint64_t value = 1; value <= kPeriod; ++value) {
      for (const Word& word : awaited) {
        if (word.host != nullptr) {
          std::atomic_ref<uint64_t>(*word.host).store(value);
        } else {
          RETURN_IF_ERROR(CudaStatus(
              cudaMemcpyAsync(word.device, &value, sizeof(value), cudaMemcpyDefault, release_stream_), "the release"));
        }
      }
      std::this_thread::sleep_for(kReleaseHold);
    }
    ASSIGN_OR_RETURN(const bool idle, IsIdle());
    if (idle) return absl::OkStatus();
  }
  return absl::DeadlineExceededError("the stream still waits after its words were written");
}

}  // namespace starring::gpu_wait
