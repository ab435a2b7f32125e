#include "tests/cuda_emulation/memory.h"

#include <cuda_runtime.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <vector>

#include "tests/cuda_emulation/counters.h"
#include "tests/cuda_emulation/emulated_gpu.h"
#include "tests/cuda_emulation/queues.h"
#include "tests/cuda_emulation/streams.h"

namespace starring::cuda_emulation {
namespace {

constexpr size_t kAlignment = 256;
// cudaMalloc of a multiple of this has pages of its own, as a GPU's driver gives them: such memory can be exported.
constexpr size_t kBlockBytes = size_t{2} << 20;

size_t SizeOf(size_t size_bytes) { return size_bytes; }
size_t SizeOf(const Block& block) { return block.size_bytes; }

template <typename Allocation>
bool IsIn(const std::map<uintptr_t, Allocation>& allocations, const void* data, size_t size_bytes) {
  const std::lock_guard<std::mutex> lock(TheMemory().mutex);
  const auto after = allocations.upper_bound(reinterpret_cast<uintptr_t>(data));
  if (after == allocations.begin()) return false;
  const auto& [begin, allocation] = *std::prev(after);
  return reinterpret_cast<uintptr_t>(data) + size_bytes <= begin + SizeOf(allocation);
}

void SetPinned(const void* data, size_t size_bytes) {
  const std::lock_guard<std::mutex> lock(TheMemory().mutex);
  TheMemory().pinned[reinterpret_cast<uintptr_t>(data)] = size_bytes;
}
void UnsetPinned(const void* data) {
  const std::lock_guard<std::mutex> lock(TheMemory().mutex);
  TheMemory().pinned.erase(reinterpret_cast<uintptr_t>(data));
}

size_t RoundUp(size_t size_bytes) { return (size_bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Null if there is none.
void* Allocate(size_t size_bytes, Block::Kind kind) {
  if (kind == Block::Kind::kCounted) return AllocateCounted(size_bytes);  // zeros
  void* data = nullptr;
  if (kind == Block::Kind::kPages) {
    data = ReserveBeforeGuard(size_bytes);
    if (data != nullptr && mprotect(data, size_bytes, PROT_READ | PROT_WRITE) != 0) return nullptr;
  } else if (posix_memalign(&data, kAlignment, size_bytes) != 0) {
    // Exactly this size, so that AddressSanitizer sees an access to the first byte after it.
    return nullptr;
  }
  if (data != nullptr) std::memset(data, 0xff, size_bytes);  // every float is NaN
  return data;
}

}  // namespace

Memory& TheMemory() {
  static Memory& memory = *new Memory;
  return memory;
}

bool FindBlock(void* data, void** begin, Block* block) {
  const std::lock_guard<std::mutex> lock(TheMemory().mutex);
  const auto after = TheMemory().device.upper_bound(reinterpret_cast<uintptr_t>(data));
  if (after == TheMemory().device.begin()) return false;
  const auto& [address, found] = *std::prev(after);
  const size_t offset = reinterpret_cast<uintptr_t>(data) - address;
  if (offset >= found.size_bytes) return false;
  *begin = static_cast<char*>(data) - offset;
  *block = found;
  return true;
}

bool IsDevice(const void* data, size_t size_bytes) { return IsIn(TheMemory().device, data, size_bytes); }
bool IsPinned(const void* data, size_t size_bytes) { return IsIn(TheMemory().pinned, data, size_bytes); }

void* ReserveBeforeGuard(size_t size_bytes) {
  void* const data =
      mmap(nullptr, size_bytes + kPageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return data == MAP_FAILED ? nullptr : data;
}

void ReleaseWithGuard(void* data, size_t size_bytes) { munmap(data, size_bytes + kPageBytes); }

int64_t DeviceBytes() {
  Memory& memory = TheMemory();
  const std::lock_guard<std::mutex> lock(memory.mutex);
  return memory.device_bytes;
}

}  // namespace starring::cuda_emulation

using starring::cuda_emulation::Allocate;
using starring::cuda_emulation::Block;
using starring::cuda_emulation::EnqueueWork;
using starring::cuda_emulation::Gpu;
using starring::cuda_emulation::IsCapturing;
using starring::cuda_emulation::IsDevice;
using starring::cuda_emulation::IsPinned;
using starring::cuda_emulation::ReturnIfAlive;
using starring::cuda_emulation::SetPinned;
using starring::cuda_emulation::TheMemory;
using starring::cuda_emulation::UnsetPinned;
using starring::cuda_emulation::Work;

cudaError_t cudaMalloc(void** data, size_t size_bytes) {
  ReturnIfAlive();
  if (IsCapturing()) return cudaErrorStreamCaptureUnsupported;
  auto& memory = TheMemory();
  const std::lock_guard<std::mutex> lock(memory.mutex);
  const auto free_bytes = static_cast<size_t>(Gpu().memory_bytes - memory.device_bytes);
  if (size_bytes > free_bytes) return cudaErrorMemoryAllocation;
  auto kind = Block::Kind::kHeap;
  if (Gpu().counts_bytes || !Gpu().runs_work) {  // pages of zeros need memory only when they are touched
    kind = Block::Kind::kCounted;
  } else if (size_bytes > 0 && size_bytes % starring::cuda_emulation::kBlockBytes == 0) {
    kind = Block::Kind::kPages;
  }
  *data = Allocate(size_bytes, kind);
  if (*data == nullptr) return cudaErrorMemoryAllocation;
  memory.device[reinterpret_cast<uintptr_t>(*data)] = {
      .size_bytes = size_bytes, .kind = kind, .gpu = std::max(starring::cuda_emulation::CurrentGpu(), 0)};
  memory.device_bytes += static_cast<int64_t>(starring::cuda_emulation::RoundUp(size_bytes));
  return cudaSuccess;
}

cudaError_t cudaFree(void* data) {
  ReturnIfAlive();
  if (data == nullptr) return Gpu().fits_context ? cudaSuccess : cudaErrorMemoryAllocation;
  if (IsCapturing()) return cudaErrorStreamCaptureUnsupported;
  // CUDA waits for the device here, so work that still uses the memory is no error.
  if (Gpu().async) {
    if (const cudaError_t error = starring::cuda_emulation::AwaitAll(); error != cudaSuccess) return error;
  }
  Block block;
  {
    auto& memory = TheMemory();
    const std::lock_guard<std::mutex> lock(memory.mutex);
    const auto found = memory.device.find(reinterpret_cast<uintptr_t>(data));
    if (found == memory.device.end() || found->second.kind == Block::Kind::kOpened) return cudaErrorInvalidValue;
    block = found->second;
    memory.device_bytes -= static_cast<int64_t>(starring::cuda_emulation::RoundUp(block.size_bytes));
    memory.device.erase(found);
  }
  if (block.kind == Block::Kind::kHeap) std::free(data);
  if (block.kind == Block::Kind::kPages) {
    starring::cuda_emulation::EndExport(data);
    starring::cuda_emulation::ReleaseWithGuard(data, block.size_bytes);
  }
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** data, size_t size_bytes) {
  ReturnIfAlive();
  if (IsCapturing()) return cudaErrorStreamCaptureUnsupported;
  if (static_cast<int64_t>(size_bytes) > Gpu().pinned_bytes_max) return cudaErrorMemoryAllocation;
  if (posix_memalign(data, starring::cuda_emulation::kPageBytes, size_bytes) != 0) return cudaErrorMemoryAllocation;
  std::memset(*data, 0xff, size_bytes);
  SetPinned(*data, size_bytes);
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* data) {
  ReturnIfAlive();
  if (Gpu().async) {
    if (const cudaError_t error = starring::cuda_emulation::AwaitAll(); error != cudaSuccess) return error;
  }
  UnsetPinned(data);
  std::free(data);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* data, size_t size_bytes, unsigned flags) {
  ReturnIfAlive();
  const bool supported = flags == cudaHostRegisterReadOnly ? Gpu().registers_read_only : Gpu().registers_memory;
  if (!supported) return cudaErrorNotSupported;
  if (data == nullptr) return cudaErrorInvalidValue;
  SetPinned(data, size_bytes);
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* data) {
  ReturnIfAlive();
  UnsetPinned(data);
  return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned flags) {
  if (flags != 0 || !IsPinned(host, 1)) return cudaErrorInvalidValue;
  *device = host;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *total_bytes = static_cast<size_t>(Gpu().memory_bytes);
  *free_bytes = *total_bytes - static_cast<size_t>(starring::cuda_emulation::DeviceBytes());
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size_bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  ReturnIfAlive();
  const bool to_device = IsDevice(to, size_bytes), from_device = IsDevice(from, size_bytes);
  if (kind != cudaMemcpyDefault &&
      (to_device != (kind != cudaMemcpyDeviceToHost) || from_device != (kind != cudaMemcpyHostToDevice))) {
    return cudaErrorInvalidValue;
  }
  const auto copied_bytes = static_cast<int64_t>(size_bytes);
  if ((Gpu().late || Gpu().async) && !from_device && !IsPinned(from, size_bytes)) {  // the host may change it at once
    const auto* const bytes = static_cast<const char*>(from);
    const auto copy = [to, staged = std::vector<char>(bytes, bytes + size_bytes)] {
      std::memcpy(to, staged.data(), staged.size());
    };
    return EnqueueWork(stream, {.run = copy, .kind = Work::kCopy, .copied_bytes = copied_bytes});
  }
  const auto copy = [=] { std::memcpy(to, from, size_bytes); };
  const cudaError_t error = EnqueueWork(stream, {.run = copy, .kind = Work::kCopy, .copied_bytes = copied_bytes});
  // CUDA returns from a copy to memory that is not pinned only when the copy is done.
  const bool is_awaited = !to_device && !IsPinned(to, size_bytes) && stream != nullptr && stream->capture == nullptr;
  if (error != cudaSuccess || !is_awaited) return error;
  return starring::cuda_emulation::Await(starring::cuda_emulation::EndOf(stream->queue));
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t size_bytes, cudaStream_t stream) {
  if (!IsDevice(to, size_bytes)) return cudaErrorInvalidValue;
  return EnqueueWork(stream, {.run = [=] { std::memset(to, value, size_bytes); }, .kind = Work::kMemset});
}

// The stream that CUDA gives to these two follows no stream that was created as ours are.
cudaError_t cudaMemcpy(void* to, const void* from, size_t size_bytes, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, size_bytes, kind, nullptr);
}

cudaError_t cudaMemset(void* to, int value, size_t size_bytes) {
  return cudaMemsetAsync(to, value, size_bytes, nullptr);
}
