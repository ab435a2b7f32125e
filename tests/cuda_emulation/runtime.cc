// Memory, streams, events and graphs.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>
#include <vector>

#include "tests/cuda_emulation/emulated_gpu.h"

struct CudaEmulatedGraph {
  std::vector<std::function<void()>> work;
  std::vector<cudaStream_t> branches;  // other streams in the capture
};
struct CudaEmulatedStream {
  CudaEmulatedGraph* capture = nullptr;
  bool joined = true;  // of a branch: nothing was queued since its origin waited for it
};
struct CudaEmulatedEvent {
  cudaStream_t stream = nullptr;         // recorded in its capture, by the default flag
  CudaEmulatedGraph* capture = nullptr;  // that one
};

namespace starring::cuda_emulation {
namespace {

constexpr size_t kAlignment = 256;

// Allocations by address, of the GPU and of pinned memory.
struct Memory {
  std::mutex mutex;
  std::map<uintptr_t, size_t> device;
  int64_t device_bytes = 0;
};
Memory& TheMemory() {
  static Memory& memory = *new Memory;
  return memory;
}

thread_local int captures = 0;  // of streams by this thread

bool IsDevice(const void* data, size_t size_bytes) {
  Memory& memory = TheMemory();
  const std::lock_guard<std::mutex> lock(memory.mutex);
  const auto after = memory.device.upper_bound(reinterpret_cast<uintptr_t>(data));
  if (after == memory.device.begin()) return false;
  const auto& [begin, have_bytes] = *std::prev(after);
  return reinterpret_cast<uintptr_t>(data) + size_bytes <= begin + have_bytes;
}

size_t RoundUp(size_t size_bytes) { return (size_bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

EmulatedGpu& Gpu() {
  static EmulatedGpu gpu = [] {
    const char* const value = std::getenv("EMULATED_GPU_REGISTERS");
    const std::string_view registers = value == nullptr ? "" : value;
    return EmulatedGpu{.registers_memory = registers != "nothing",
                       .registers_read_only = registers != "nothing" && registers != "writable"};
  }();
  return gpu;
}

int64_t DeviceBytes() {
  Memory& memory = TheMemory();
  const std::lock_guard<std::mutex> lock(memory.mutex);
  return memory.device_bytes;
}

cudaError_t Enqueue(cudaStream_t stream, std::function<void()> work) {
  if (stream != nullptr && stream->capture != nullptr) {
    stream->joined = false;
    stream->capture->work.push_back(std::move(work));
  } else {
    work();
  }
  return cudaSuccess;
}

}  // namespace starring::cuda_emulation

using starring::cuda_emulation::captures;
using starring::cuda_emulation::Enqueue;
using starring::cuda_emulation::Gpu;
using starring::cuda_emulation::IsDevice;
using starring::cuda_emulation::TheMemory;

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  if (Gpu().driver_version < 13000) return cudaErrorInsufficientDriver;
  *count = Gpu().count;
  return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int ordinal) {
  if (ordinal < 0 || ordinal >= Gpu().count) return cudaErrorInvalidDevice;
  std::snprintf(properties->name, sizeof(properties->name), "emulated GPU");
  properties->totalGlobalMem = static_cast<size_t>(Gpu().memory_bytes);
  properties->major = Gpu().compute_major;
  properties->minor = 0;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = Gpu().driver_version;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int ordinal) {
  return ordinal >= 0 && ordinal < Gpu().count ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaGetLastError() { return cudaSuccess; }

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorNotSupported:
      return "operation not supported";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureUnjoined:
      return "capturing stream has unjoined work";
  }
  return "unknown error";
}

cudaError_t cudaMalloc(void** data, size_t size_bytes) {
  if (captures > 0) return cudaErrorStreamCaptureUnsupported;
  auto& memory = TheMemory();
  const std::lock_guard<std::mutex> lock(memory.mutex);
  const auto free_bytes = static_cast<size_t>(Gpu().memory_bytes - memory.device_bytes);
  if (size_bytes > free_bytes) return cudaErrorMemoryAllocation;
  // Of exactly this size, so that AddressSanitizer sees the first byte behind it.
  if (posix_memalign(data, starring::cuda_emulation::kAlignment, size_bytes) != 0) return cudaErrorMemoryAllocation;
  std::memset(*data, 0xff, size_bytes);
  memory.device[reinterpret_cast<uintptr_t>(*data)] = size_bytes;
  memory.device_bytes += static_cast<int64_t>(starring::cuda_emulation::RoundUp(size_bytes));
  return cudaSuccess;
}

cudaError_t cudaFree(void* data) {
  if (data == nullptr) return cudaSuccess;
  if (captures > 0) return cudaErrorStreamCaptureUnsupported;
  auto& memory = TheMemory();
  const std::lock_guard<std::mutex> lock(memory.mutex);
  const auto found = memory.device.find(reinterpret_cast<uintptr_t>(data));
  if (found == memory.device.end()) return cudaErrorInvalidValue;
  memory.device_bytes -= static_cast<int64_t>(starring::cuda_emulation::RoundUp(found->second));
  memory.device.erase(found);
  std::free(data);
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** data, size_t size_bytes) {
  if (captures > 0) return cudaErrorStreamCaptureUnsupported;
  if (posix_memalign(data, 4096, size_bytes) != 0) return cudaErrorMemoryAllocation;
  std::memset(*data, 0xff, size_bytes);
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* data) {
  std::free(data);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* data, size_t, unsigned flags) {
  const bool supported = flags == cudaHostRegisterReadOnly ? Gpu().registers_read_only : Gpu().registers_memory;
  if (!supported) return cudaErrorNotSupported;
  return data == nullptr ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *total_bytes = static_cast<size_t>(Gpu().memory_bytes);
  *free_bytes = *total_bytes - static_cast<size_t>(starring::cuda_emulation::DeviceBytes());
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size_bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (IsDevice(to, size_bytes) != (kind != cudaMemcpyDeviceToHost)) return cudaErrorInvalidValue;
  if (IsDevice(from, size_bytes) != (kind != cudaMemcpyHostToDevice)) return cudaErrorInvalidValue;
  return Enqueue(stream, [=] { std::memcpy(to, from, size_bytes); });
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t size_bytes, cudaStream_t stream) {
  if (!IsDevice(to, size_bytes)) return cudaErrorInvalidValue;
  return Enqueue(stream, [=] { std::memset(to, value, size_bytes); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CudaEmulatedStream;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return stream->capture == nullptr ? cudaSuccess : cudaErrorStreamCaptureUnsupported;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  if (flags == cudaEventWaitExternal) return stream->capture != nullptr ? cudaSuccess : cudaErrorInvalidValue;
  if (event->capture == nullptr) return stream->capture == nullptr ? cudaSuccess : cudaErrorInvalidValue;
  if (stream->capture == nullptr) {  // a fork
    stream->capture = event->capture;
    stream->joined = true;
    event->capture->branches.push_back(stream);
  } else if (stream->capture != event->capture) {
    return cudaErrorInvalidValue;
  }
  event->stream->joined = true;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CudaEmulatedEvent;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  if (flags == cudaEventRecordExternal) {
    if (stream->capture == nullptr) return cudaErrorInvalidValue;
    stream->joined = false;
    return cudaSuccess;
  }
  *event = {.stream = stream, .capture = stream->capture};
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (stream->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
  stream->capture = new CudaEmulatedGraph;
  ++captures;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (stream->capture == nullptr) return cudaErrorInvalidValue;
  *graph = std::exchange(stream->capture, nullptr);
  --captures;
  bool joined = true;
  for (const cudaStream_t branch : (*graph)->branches) {
    joined = joined && branch->joined;
    branch->capture = nullptr;
  }
  if (joined) return cudaSuccess;
  delete std::exchange(*graph, nullptr);
  return cudaErrorStreamCaptureUnjoined;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = new CudaEmulatedGraph(*graph);
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  if (stream->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
  for (const auto& work : executable->work) work();
  return cudaSuccess;
}

// An executable graph is the same type here: one function destroys both.
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) { return cudaGraphDestroy(executable); }
