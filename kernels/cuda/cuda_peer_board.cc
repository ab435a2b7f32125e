#include "kernels/cuda/cuda_peer_board.h"

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "kernels/cuda/cuda_memory.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/gpu_libraries.h"
#include "kernels/cuda/peer_update.h"

namespace starring {
namespace {

// The driver takes no more operations in one call.
constexpr size_t kOperationsMax = 255;

class MappedBoard final : public CudaPeerBoard {
 public:
  MappedBoard(const CudaDriverLibrary& driver, std::span<std::byte> memory, CudaWatch* watch)
      : driver_(driver), memory_(memory), watch_(watch), counter_(watch) {}
  ~MappedBoard() override {
    if (mapped_ == nullptr) return;
    const CudaWatch::Call call(watch_, "unpinning memory");
    cudaHostUnregister(memory_.data());
  }

  absl::Status Open(int ordinal);

  absl::Status Store(CudaStream* stream, uint8_t* byte, uint8_t value) override {
    return CudaStatus(cuda::StoreByte(StreamOf(stream), Mapped(byte), value), "telling other GPUs");
  }
  absl::Status Await(CudaStream* stream, std::span<const Wait> waits) override;
  absl::Status ApplyPeerUpdate(CudaStream* stream, const OptimizerConfig& config, const CudaPeerUpdate& update,
                               const Update& more) override;
  absl::Status RunPeerHop(CudaStream* stream, const CudaPeerHop& hop, const Hop& more) override;

 private:
  static cudaStream_t StreamOf(CudaStream* stream) { return static_cast<cudaStream_t>(stream->native()); }

  // The address at which the GPU has what is at `host`, which may be null.
  template <typename T>
  T* Mapped(T* host) const {
    if (host == nullptr) return nullptr;
    const auto offset = reinterpret_cast<const std::byte*>(host) - memory_.data();
    CHECK(0 <= offset && offset + static_cast<ptrdiff_t>(sizeof(T)) <= std::ssize(memory_)) << "not of the board";
    return reinterpret_cast<T*>(mapped_ + offset);
  }
  cuda::PeerSignal SignalOf(const Signal& signal) {
    return {.done = Mapped(signal.done),
            .done_value = signal.value,
            .counter = counter_.data(),
            .is_void = Mapped(signal.is_void)};
  }
  absl::StatusOr<bool> Has(CUdevice device, CUdevice_attribute attribute) const;
  absl::Status StatusOf(CUresult result, const char* what) const;

  const CudaDriverLibrary driver_;
  const std::span<std::byte> memory_;
  CudaWatch* const watch_;
  std::byte* mapped_ = nullptr;  // the memory as the GPU addresses it
  unsigned wait_flags_ = CU_STREAM_WAIT_VALUE_EQ;
  CudaCounters counter_;  // of the blocks of an update that have ended
};

absl::Status MappedBoard::StatusOf(CUresult result, const char* what) const {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  const char *name = nullptr, *text = nullptr;
  driver_.get_error_name(result, &name);
  driver_.get_error_string(result, &text);
  return absl::InternalError(
      absl::StrCat(what, ": ", name == nullptr ? "an unknown error" : name, ": ", text == nullptr ? "no text" : text));
}

absl::StatusOr<bool> MappedBoard::Has(CUdevice device, CUdevice_attribute attribute) const {
  int value = 0;
  RETURN_IF_ERROR(StatusOf(driver_.device_get_attribute(&value, attribute, device), "asking a GPU for an attribute"));
  return value != 0;
}

absl::Status MappedBoard::Open(int ordinal) {
  CUdevice device = 0;
  RETURN_IF_ERROR(StatusOf(driver_.device_get(&device, ordinal), "asking for a GPU"));
  ASSIGN_OR_RETURN(const bool has_words, Has(device, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS));
  if (!has_words) {
    return absl::UnavailableError(
        "the GPU's streams cannot wait for 64-bit words (CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS is 0)");
  }
  // Where writes of other GPUs may still be on their way when their flag is seen, the wait must flush them.
  ASSIGN_OR_RETURN(const bool flushes, Has(device, CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES));
  if (flushes) wait_flags_ |= static_cast<unsigned>(CU_STREAM_WAIT_VALUE_FLUSH);
  const CudaWatch::Call call(watch_, "pinning memory");
  const cudaError_t pinned = cudaHostRegister(memory_.data(), memory_.size(), cudaHostRegisterMapped);
  if (pinned != cudaSuccess) {
    cudaGetLastError();  // clears the error, which the next launch would report otherwise
    return absl::UnavailableError(CudaStatus(pinned, "cudaHostRegister").message());
  }
  void* mapped = nullptr;
  const cudaError_t found = cudaHostGetDevicePointer(&mapped, memory_.data(), 0);
  if (found != cudaSuccess) {
    cudaGetLastError();
    cudaHostUnregister(memory_.data());
    return absl::UnavailableError(CudaStatus(found, "cudaHostGetDevicePointer").message());
  }
  mapped_ = static_cast<std::byte*>(mapped);
  // The stream is CUDA's own: nothing else is in flight here, and the host waits for the zeros.
  RETURN_IF_ERROR(counter_.Reserve(nullptr, 1));
  return CudaStatus(cudaDeviceSynchronize(), "zeroing a counter");
}

absl::Status MappedBoard::Await(CudaStream* stream, std::span<const Wait> waits) {
  std::vector<CUstreamBatchMemOpParams> operations;
  while (!waits.empty()) {
    const std::span<const Wait> some = waits.first(std::min(waits.size(), kOperationsMax));
    waits = waits.subspan(some.size());
    operations.clear();
    for (const Wait& wait : some) {
      CUstreamBatchMemOpParams operation = {};
      operation.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
      operation.waitValue.address = reinterpret_cast<CUdeviceptr>(Mapped(wait.word));
      operation.waitValue.value64 = wait.value;
      operation.waitValue.flags = wait_flags_;
      operations.push_back(operation);
    }
    RETURN_IF_ERROR(StatusOf(
        driver_.stream_batch_mem_op(StreamOf(stream), static_cast<unsigned>(operations.size()), operations.data(), 0),
        "waiting for other GPUs in a stream"));
  }
  return absl::OkStatus();
}

absl::Status MappedBoard::ApplyPeerUpdate(CudaStream* stream, const OptimizerConfig& config,
                                          const CudaPeerUpdate& update, const Update& more) {
  cuda::PeerUpdateArgs args = PeerUpdateOf(config, update);
  args.bound = more.values;
  args.findings = Mapped(more.findings);
  args.findings_stride = more.findings_stride;
  args.first_finding = more.first_finding;
  args.signal = SignalOf(more.signal);
  return CudaStatus(cuda::ApplyPeerUpdate(StreamOf(stream), args), "the update among GPUs");
}

absl::Status MappedBoard::RunPeerHop(CudaStream* stream, const CudaPeerHop& hop, const Hop& more) {
  const cuda::PeerHopArgs args = {.rows = hop.rows,
                                  .left = hop.left,
                                  .own = hop.own,
                                  .out = hop.out,
                                  .left_finding = Mapped(more.left_finding),
                                  .own_finding = Mapped(more.own_finding),
                                  .signal = SignalOf(more.signal)};
  return CudaStatus(cuda::RunPeerHop(StreamOf(stream), args), "a hop among GPUs");
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaPeerBoard>> MapCudaPeerBoard(int ordinal, std::span<std::byte> memory,
                                                                CudaWatch* watch) {
  ASSIGN_OR_RETURN(const CudaDriverLibrary driver, CudaDriverLibrary::Load());
  auto board = std::make_unique<MappedBoard>(driver, memory, watch);
  RETURN_IF_ERROR(board->Open(ordinal));
  return board;
}

}  // namespace starring
