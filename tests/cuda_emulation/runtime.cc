// Memory, streams, events and graphs.
#include <cuda_runtime.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/cuda_emulation/emulated_gpu.h"

namespace starring::cuda_emulation {
namespace {

// The work that a stream still has to do: none, unless streams are late.
struct Queue {
  std::deque<std::function<void()>> work;
  int64_t done_count = 0;
};

// The point after the first `count` pieces of work of a queue.
struct Point {
  std::shared_ptr<Queue> queue;
  int64_t count = 0;
};

// A piece of captured work, or a record of an event, or a wait for one.
struct GraphNode {
  Work kind = Work::kKernel;
  std::function<void()> work;
  int64_t copied_bytes = 0;
  cudaEvent_t records = nullptr, waits = nullptr;
};

}  // namespace
}  // namespace starring::cuda_emulation

struct CudaEmulatedGraph {
  std::vector<starring::cuda_emulation::GraphNode> nodes;
  std::vector<cudaStream_t> branches;  // other streams in the capture
};
struct CudaEmulatedStream {
  CudaEmulatedGraph* capture = nullptr;
  bool joined = true;  // for a branch: nothing was queued since its origin waited for it
  std::shared_ptr<starring::cuda_emulation::Queue> queue = std::make_shared<starring::cuda_emulation::Queue>();
};
struct CudaEmulatedEvent {
  cudaStream_t stream = nullptr;          // recorded in its capture, by the default flag
  CudaEmulatedGraph* capture = nullptr;   // of that stream
  starring::cuda_emulation::Point point;  // else
};

namespace starring::cuda_emulation {
namespace {

constexpr size_t kAlignment = 256;

// By address.
struct Memory {
  std::mutex mutex;
  std::map<uintptr_t, size_t> device, pinned;
  int64_t device_bytes = 0;
};
Memory& TheMemory() {
  static Memory& memory = *new Memory;
  return memory;
}

thread_local int captures = 0;  // of streams by this thread
thread_local int current_gpu = -1;

bool IsIn(const std::map<uintptr_t, size_t>& allocations, const void* data, size_t size_bytes) {
  const std::lock_guard<std::mutex> lock(TheMemory().mutex);
  const auto after = allocations.upper_bound(reinterpret_cast<uintptr_t>(data));
  if (after == allocations.begin()) return false;
  const auto& [begin, have_bytes] = *std::prev(after);
  return reinterpret_cast<uintptr_t>(data) + size_bytes <= begin + have_bytes;
}

bool IsDevice(const void* data, size_t size_bytes) { return IsIn(TheMemory().device, data, size_bytes); }
bool IsPinned(const void* data, size_t size_bytes) { return IsIn(TheMemory().pinned, data, size_bytes); }

void SetPinned(const void* data, size_t size_bytes) {
  const std::lock_guard<std::mutex> lock(TheMemory().mutex);
  TheMemory().pinned[reinterpret_cast<uintptr_t>(data)] = size_bytes;
}
void UnsetPinned(const void* data) {
  const std::lock_guard<std::mutex> lock(TheMemory().mutex);
  TheMemory().pinned.erase(reinterpret_cast<uintptr_t>(data));
}

void ReturnIfAlive() {
  while (Hangs()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// Counts a launch of a graph, which may be the last thing that this GPU does.
void CountLaunch() {
  static const char* const last = std::getenv("EMULATED_GPU_HANGS_AT_LAUNCH");
  static std::atomic<int> count = 0;
  if (last != nullptr && ++count == std::atoi(last)) Hangs() = true;
}

bool EnvironmentSays(const char* name, std::string_view what) {
  const char* const value = std::getenv(name);
  return value != nullptr && value == what;
}

int EnvironmentNumber(const char* name, int otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoi(value);
}

size_t RoundUp(size_t size_bytes) { return (size_bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Guards all queues, whose work waits for each other, and the points of events. Held while late work runs.
std::recursive_mutex& QueueMutex() {
  static std::recursive_mutex& mutex = *new std::recursive_mutex;
  return mutex;
}

Point EndOf(const std::shared_ptr<Queue>& queue) {
  const std::lock_guard<std::recursive_mutex> lock(QueueMutex());
  return {.queue = queue, .count = queue->done_count + static_cast<int64_t>(queue->work.size())};
}

void RunTo(const Point& point) {
  if (point.queue == nullptr) return;
  const std::lock_guard<std::recursive_mutex> lock(QueueMutex());
  while (point.queue->done_count < point.count) {
    const std::function<void()> work = std::move(point.queue->work.front());
    point.queue->work.pop_front();
    ++point.queue->done_count;
    work();
  }
}

// Runs the work now, or later if streams are late.
void RunOrKeep(const std::shared_ptr<Queue>& queue, std::function<void()> work) {
  if (!Gpu().late) return work();
  const std::lock_guard<std::recursive_mutex> lock(QueueMutex());
  queue->work.push_back(std::move(work));
}
void RunWait(const std::shared_ptr<Queue>& queue, const Point& point) {
  if (point.queue != nullptr) RunOrKeep(queue, [point] { RunTo(point); });
}
void Run(const std::shared_ptr<Queue>& queue, Work kind, std::function<void()> work, int64_t copied_bytes) {
  Count(kind, copied_bytes);
  // Copies run in any case: the host reads what they bring.
  if (Gpu().runs_work || kind == Work::kCopy) RunOrKeep(queue, std::move(work));
}

}  // namespace

EmulatedGpu& Gpu() {
  static EmulatedGpu gpu = [] {
    const bool nothing = EnvironmentSays("EMULATED_GPU_REGISTERS", "nothing");
    const bool writable = EnvironmentSays("EMULATED_GPU_REGISTERS", "writable");
    return EmulatedGpu{.cudnn_version = EnvironmentNumber("EMULATED_GPU_CUDNN", 0),
                       .cudnn_first_engine = EnvironmentNumber("EMULATED_GPU_CUDNN_ENGINE", 7),
                       .registers_memory = !nothing,
                       .registers_read_only = !nothing && !writable,
                       .late = EnvironmentSays("EMULATED_GPU_STREAMS", "late")};
  }();
  return gpu;
}

int CurrentGpu() { return current_gpu; }

std::atomic<bool>& Hangs() {
  static std::atomic<bool> hangs = false;
  return hangs;
}

int64_t DeviceBytes() {
  Memory& memory = TheMemory();
  const std::lock_guard<std::mutex> lock(memory.mutex);
  return memory.device_bytes;
}

cudaError_t Enqueue(cudaStream_t stream, std::function<void()> work, Work kind, int64_t copied_bytes) {
  if (stream == nullptr) {
    work();
  } else if (stream->capture != nullptr) {
    stream->joined = false;
    stream->capture->nodes.push_back({.kind = kind, .work = std::move(work), .copied_bytes = copied_bytes});
  } else {
    Run(stream->queue, kind, std::move(work), copied_bytes);
  }
  return cudaSuccess;
}

}  // namespace starring::cuda_emulation

using starring::cuda_emulation::captures;
using starring::cuda_emulation::CountLaunch;
using starring::cuda_emulation::EndOf;
using starring::cuda_emulation::Enqueue;
using starring::cuda_emulation::Gpu;
using starring::cuda_emulation::GraphNode;
using starring::cuda_emulation::IsDevice;
using starring::cuda_emulation::IsPinned;
using starring::cuda_emulation::QueueMutex;
using starring::cuda_emulation::ReturnIfAlive;
using starring::cuda_emulation::Run;
using starring::cuda_emulation::RunTo;
using starring::cuda_emulation::RunWait;
using starring::cuda_emulation::SetPinned;
using starring::cuda_emulation::TheMemory;
using starring::cuda_emulation::UnsetPinned;
using starring::cuda_emulation::Work;

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  ReturnIfAlive();
  if (Gpu().driver_version < 13000) return cudaErrorInsufficientDriver;
  if (Gpu().driver_error != 0) return static_cast<cudaError_t>(Gpu().driver_error);
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
  if (ordinal < 0 || ordinal >= Gpu().count) return cudaErrorInvalidDevice;
  starring::cuda_emulation::current_gpu = ordinal;
  return cudaSuccess;
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
  ReturnIfAlive();
  if (captures > 0) return cudaErrorStreamCaptureUnsupported;
  auto& memory = TheMemory();
  const std::lock_guard<std::mutex> lock(memory.mutex);
  const auto free_bytes = static_cast<size_t>(Gpu().memory_bytes - memory.device_bytes);
  if (size_bytes > free_bytes) return cudaErrorMemoryAllocation;
  if (Gpu().counts_bytes || !Gpu().runs_work) {  // pages of zeros need memory only when they are touched
    *data = starring::cuda_emulation::AllocateCounted(size_bytes);
    if (*data == nullptr) return cudaErrorMemoryAllocation;
  } else {
    // Exactly this size, so that AddressSanitizer sees an access to the first byte after it.
    if (posix_memalign(data, starring::cuda_emulation::kAlignment, size_bytes) != 0) return cudaErrorMemoryAllocation;
    std::memset(*data, 0xff, size_bytes);  // every float is NaN
  }
  memory.device[reinterpret_cast<uintptr_t>(*data)] = size_bytes;
  memory.device_bytes += static_cast<int64_t>(starring::cuda_emulation::RoundUp(size_bytes));
  return cudaSuccess;
}

cudaError_t cudaFree(void* data) {
  ReturnIfAlive();
  if (data == nullptr) return Gpu().fits_context ? cudaSuccess : cudaErrorMemoryAllocation;
  if (captures > 0) return cudaErrorStreamCaptureUnsupported;
  auto& memory = TheMemory();
  const std::lock_guard<std::mutex> lock(memory.mutex);
  const auto found = memory.device.find(reinterpret_cast<uintptr_t>(data));
  if (found == memory.device.end()) return cudaErrorInvalidValue;
  memory.device_bytes -= static_cast<int64_t>(starring::cuda_emulation::RoundUp(found->second));
  memory.device.erase(found);
  if (!starring::cuda_emulation::IsCounted(data)) std::free(data);
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** data, size_t size_bytes) {
  ReturnIfAlive();
  if (captures > 0) return cudaErrorStreamCaptureUnsupported;
  if (static_cast<int64_t>(size_bytes) > Gpu().pinned_bytes_max) return cudaErrorMemoryAllocation;
  if (posix_memalign(data, 4096, size_bytes) != 0) return cudaErrorMemoryAllocation;
  std::memset(*data, 0xff, size_bytes);
  SetPinned(*data, size_bytes);
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* data) {
  ReturnIfAlive();
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

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *total_bytes = static_cast<size_t>(Gpu().memory_bytes);
  *free_bytes = *total_bytes - static_cast<size_t>(starring::cuda_emulation::DeviceBytes());
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size_bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  ReturnIfAlive();
  if (IsDevice(to, size_bytes) != (kind != cudaMemcpyDeviceToHost)) return cudaErrorInvalidValue;
  if (IsDevice(from, size_bytes) != (kind != cudaMemcpyHostToDevice)) return cudaErrorInvalidValue;
  if (Gpu().late && kind == cudaMemcpyHostToDevice && !IsPinned(from, size_bytes)) {  // the host may change it at once
    const auto* const bytes = static_cast<const char*>(from);
    return Enqueue(
        stream,
        [to, staged = std::vector<char>(bytes, bytes + size_bytes)] { std::memcpy(to, staged.data(), staged.size()); },
        Work::kCopy, static_cast<int64_t>(size_bytes));
  }
  const cudaError_t error = Enqueue(
      stream, [=] { std::memcpy(to, from, size_bytes); }, Work::kCopy, static_cast<int64_t>(size_bytes));
  // CUDA returns from a copy to memory that is not pinned only when the copy is done.
  const bool is_needed = kind == cudaMemcpyDeviceToHost && !IsPinned(to, size_bytes);
  if (is_needed && stream != nullptr && stream->capture == nullptr) RunTo(EndOf(stream->queue));
  return error;
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t size_bytes, cudaStream_t stream) {
  if (!IsDevice(to, size_bytes)) return cudaErrorInvalidValue;
  return Enqueue(
      stream, [=] { std::memset(to, value, size_bytes); }, Work::kMemset);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CudaEmulatedStream;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  RunTo(EndOf(stream->queue));
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  ReturnIfAlive();
  if (stream->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
  RunTo(EndOf(stream->queue));
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  const std::lock_guard<std::recursive_mutex> lock(QueueMutex());
  if (flags == cudaEventWaitExternal) {
    if (stream->capture == nullptr) return cudaErrorInvalidValue;
    stream->capture->nodes.push_back({.waits = event});
    return cudaSuccess;
  }
  if (event->capture == nullptr) {
    // CUDA refuses a capture that depends on work outside of it.
    if (stream->capture != nullptr) return cudaErrorInvalidValue;
    RunWait(stream->queue, event->point);
    return cudaSuccess;
  }
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
  const std::lock_guard<std::recursive_mutex> lock(QueueMutex());
  if (flags == cudaEventRecordExternal) {
    if (stream->capture == nullptr) return cudaErrorInvalidValue;
    stream->joined = false;
    stream->capture->nodes.push_back({.records = event});
    return cudaSuccess;
  }
  *event = {.stream = stream, .capture = stream->capture, .point = EndOf(stream->queue)};
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  ReturnIfAlive();
  const std::lock_guard<std::recursive_mutex> lock(QueueMutex());
  RunTo(event->point);
  return cudaSuccess;
}

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
  ReturnIfAlive();
  *executable = new CudaEmulatedGraph(*graph);
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  ReturnIfAlive();
  CountLaunch();
  if (stream->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
  starring::cuda_emulation::CountGraphLaunch();
  for (const GraphNode& node : executable->nodes) {
    if (node.records != nullptr || node.waits != nullptr) {
      starring::cuda_emulation::CountEvent();
      const std::lock_guard<std::recursive_mutex> lock(QueueMutex());
      if (node.records != nullptr) node.records->point = EndOf(stream->queue);
      if (node.waits != nullptr) RunWait(stream->queue, node.waits->point);
    } else {
      Run(stream->queue, node.kind, node.work, node.copied_bytes);
    }
  }
  return cudaSuccess;
}

// An executable graph is the same type here: one function destroys both.
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  ReturnIfAlive();
  return cudaGraphDestroy(executable);
}
