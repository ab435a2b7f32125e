// The driver's functions of cuda.h.
#include <cuda.h>

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tests/cuda_emulation/emulated_gpu.h"
#include "tests/cuda_emulation/memory.h"
#include "tests/cuda_emulation/streams.h"

namespace starring::cuda_emulation {
namespace {

constexpr unsigned kOperationsMax = 255;  // of a call

bool HasWideValue(const CUstreamBatchMemOpParams& operation) {
  return operation.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 ||
         operation.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
}

bool IsWait(const CUstreamBatchMemOpParams& operation) {
  return operation.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 || operation.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
}

CUresult CheckAddress(CUdeviceptr address, size_t value_bytes) {
  const void* const word = std::bit_cast<const void*>(address);
  const bool is_reached = IsDevice(word, value_bytes) || IsPinned(word, value_bytes);
  return is_reached && address % value_bytes == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult Check(const CUstreamBatchMemOpParams& operation) {
  const bool is_wide = HasWideValue(operation);
  if (is_wide && !Gpu().has_64_bit_operations) return CUDA_ERROR_NOT_SUPPORTED;
  const size_t value_bytes = is_wide ? sizeof(uint64_t) : sizeof(uint32_t);
  switch (operation.operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WAIT_VALUE_64: {
      const unsigned flush = CU_STREAM_WAIT_VALUE_FLUSH;
      if ((operation.waitValue.flags & flush) != 0 && !Gpu().flushes_remote_writes) return CUDA_ERROR_NOT_SUPPORTED;
      // CUDA has two more comparisons, which nothing here uses.
      if ((operation.waitValue.flags & ~flush) > CU_STREAM_WAIT_VALUE_EQ) return CUDA_ERROR_NOT_SUPPORTED;
      return CheckAddress(operation.waitValue.address, value_bytes);
    }
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
      if (operation.writeValue.flags > CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) return CUDA_ERROR_INVALID_VALUE;
      return CheckAddress(operation.writeValue.address, value_bytes);
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
      if (operation.flushRemoteWrites.flags != 0) return CUDA_ERROR_INVALID_VALUE;
      return Gpu().flushes_remote_writes ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

// Words of memory that is visible late are written and read where other processes see them: the words are early, and
// what they announce is late.
template <typename Word>
std::atomic_ref<Word> WordAt(CUdeviceptr address) {
  return std::atomic_ref<Word>(*static_cast<Word*>(VisibleAddress(std::bit_cast<void*>(address))));
}

// Whether the wait ends. A difference is compared with 0, so that counters may wrap around.
template <typename Word>
bool IsOver(const CUstreamMemOpWaitValueParams_st& wait) {
  const Word now = WordAt<Word>(wait.address).load();
  const Word value = static_cast<Word>(wait.value64);
  if ((wait.flags & CU_STREAM_WAIT_VALUE_EQ) != 0) return now == value;
  return static_cast<std::make_signed_t<Word>>(now - value) >= 0;
}

StreamWork WorkOf(const CUstreamBatchMemOpParams& operation) {
  if (operation.operation == CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES) return {};
  const bool is_wide = HasWideValue(operation);
  if (IsWait(operation)) {
    const auto wait = operation.waitValue;
    return {.is_ready = [=] { return is_wide ? IsOver<uint64_t>(wait) : IsOver<uint32_t>(wait); }};
  }
  const auto write = operation.writeValue;
  return {.run = [=] {
    if (is_wide) {
      WordAt<uint64_t>(write.address).store(write.value64);
    } else {
      WordAt<uint32_t>(write.address).store(write.value);
    }
  }};
}

}  // namespace
}  // namespace starring::cuda_emulation

using starring::cuda_emulation::Check;
using starring::cuda_emulation::EmulatedGpu;
using starring::cuda_emulation::FindBlock;
using starring::cuda_emulation::Gpu;

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (ordinal < 0 || ordinal >= Gpu().count) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  if (device < 0 || device >= Gpu().count) return CUDA_ERROR_INVALID_DEVICE;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES:
      *value = Gpu().flushes_remote_writes ? 1 : 0;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
      *value = Gpu().has_64_bit_operations ? 1 : 0;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED:
      *value = Gpu().ipc == EmulatedGpu::Ipc::kNothing ? 0 : 1;
      return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

// The runtime's errors have the driver's numbers.
CUresult cuGetErrorName(CUresult error, const char** name) {
  *name = cudaGetErrorName(static_cast<cudaError_t>(error));
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = cudaGetErrorString(static_cast<cudaError_t>(error));
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange(CUdeviceptr* begin, size_t* size_bytes, CUdeviceptr address) {
  void* data = nullptr;
  starring::cuda_emulation::Block block;
  if (!FindBlock(std::bit_cast<void*>(address), &data, &block)) return CUDA_ERROR_INVALID_VALUE;
  *begin = std::bit_cast<CUdeviceptr>(data);
  *size_bytes = block.size_bytes;
  return CUDA_SUCCESS;
}

CUresult cuStreamBatchMemOp(CUstream stream, unsigned count, CUstreamBatchMemOpParams* operations, unsigned flags) {
  starring::cuda_emulation::ReturnIfAlive();
  // A call without a stream would wait here, where nothing can end it.
  if (stream == nullptr || flags != 0 || count == 0 || count > starring::cuda_emulation::kOperationsMax) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (unsigned i = 0; i < count; ++i) {
    if (const CUresult result = Check(operations[i]); result != CUDA_SUCCESS) return result;
  }
  for (unsigned i = 0; i < count; ++i) {
    starring::cuda_emulation::StreamWork work = starring::cuda_emulation::WorkOf(operations[i]);
    // The batch is one node of a graph.
    if (i == 0) work.kind = starring::cuda_emulation::Work::kMemoryOperation;
    const cudaError_t error = EnqueueWork(stream, work);
    if (error != cudaSuccess) return static_cast<CUresult>(error);
  }
  return CUDA_SUCCESS;
}
