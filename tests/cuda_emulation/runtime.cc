// The machine, devices, errors, streams and events.
#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "tests/cuda_emulation/counters.h"
#include "tests/cuda_emulation/emulated_gpu.h"
#include "tests/cuda_emulation/memory.h"
#include "tests/cuda_emulation/queues.h"
#include "tests/cuda_emulation/streams.h"

namespace starring::cuda_emulation {
namespace {

thread_local int captures = 0;  // of streams by this thread
thread_local int current_gpu = -1;

std::string_view EnvironmentText(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int EnvironmentNumber(const char* name, int otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoi(value);
}

EmulatedGpu::Ipc EnvironmentIpc() {
  using Ipc = EmulatedGpu::Ipc;
  const std::string_view text = EnvironmentText("EMULATED_GPU_IPC");
  if (text == "nothing") return Ipc::kNothing;
  if (text == "full") return Ipc::kFull;
  if (text == "one_way") return Ipc::kOneWay;
  if (text == "corrupt") return Ipc::kCorrupt;
  return text == "late_visible" ? Ipc::kLateVisible : Ipc::kWorks;
}

void SayBytes() {
  std::fprintf(stderr, "emulated GPU: %lld bytes are not freed\n", static_cast<long long>(DeviceBytes()));
}

void SayCounts() {
  const WorkCounts counts = TakeCounts();
  std::fprintf(stderr,
               "emulated GPU: %lld kernels, %lld library calls, %lld copies, %lld memory operations, %lld events, "
               "%lld graph launches, %lld host waits\n",
               static_cast<long long>(counts.kernels), static_cast<long long>(counts.library_calls),
               static_cast<long long>(counts.copies), static_cast<long long>(counts.memory_operations),
               static_cast<long long>(counts.events), static_cast<long long>(counts.graph_launches),
               static_cast<long long>(counts.host_waits));
}

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};
constexpr ErrorText kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorDeviceUninitialized, "cudaErrorDeviceUninitialized", "invalid device context"},
    {cudaErrorMapBufferObjectFailed, "cudaErrorMapBufferObjectFailed", "mapping of buffer object failed"},
    {cudaErrorPeerAccessUnsupported, "cudaErrorPeerAccessUnsupported",
     "peer access is not supported between these two devices"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
    {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "capture was not ended in the same stream as it began"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
};

const ErrorText& TextOf(cudaError_t error) {
  static constexpr ErrorText kUnknown = {cudaSuccess, "unknown", "unknown error"};
  for (const ErrorText& text : kErrors) {
    if (text.error == error) return text;
  }
  return kUnknown;
}

// The point at which the event was last recorded. Fails if that was in a capture.
cudaError_t PointOf(cudaEvent_t event, Point* point) {
  const std::lock_guard<std::mutex> lock(EventMutex());
  if (event->is_captured) return cudaErrorCapturedEvent;
  *point = event->point;
  return cudaSuccess;
}

}  // namespace

EmulatedGpu& Gpu() {
  static EmulatedGpu gpu = [] {
    const std::string_view registers = EnvironmentText("EMULATED_GPU_REGISTERS");
    const std::string_view streams = EnvironmentText("EMULATED_GPU_STREAMS");
    EmulatedGpu machine{.cudnn_version = EnvironmentNumber("EMULATED_GPU_CUDNN", 0),
                        .cudnn_first_engine = EnvironmentNumber("EMULATED_GPU_CUDNN_ENGINE", 7),
                        .registers_memory = registers != "nothing",
                        .registers_read_only = registers != "nothing" && registers != "writable",
                        .late = streams == "late",
                        .async = streams.starts_with("async"),
                        .ipc = EnvironmentIpc(),
                        .accesses_peers = EnvironmentText("EMULATED_GPU_PEERS") != "no",
                        .is_one_gpu = EnvironmentText("EMULATED_GPU_MIG") == "yes"};
    if (EnvironmentText("EMULATED_GPU_SAYS_BYTES") == "yes") std::atexit(SayBytes);
    if (EnvironmentText("EMULATED_GPU_SAYS_COUNTS") == "yes") std::atexit(SayCounts);
    machine.has_64_bit_operations = EnvironmentText("EMULATED_GPU_WAITS") != "no";
    machine.wait_deadline_ms = EnvironmentNumber("EMULATED_GPU_DEADLINE_MS", machine.wait_deadline_ms);
    if (streams.starts_with("async:")) {
      machine.async_seed = std::strtoull(streams.substr(std::strlen("async:")).data(), nullptr, 10);
    }
    return machine;
  }();
  return gpu;
}

int CurrentGpu() { return current_gpu; }

std::atomic<bool>& Hangs() {
  static std::atomic<bool> hangs = false;
  return hangs;
}

std::atomic<bool>& GivesNans() {
  static std::atomic<bool> gives_nans = false;
  return gives_nans;
}

std::mutex& EventMutex() {
  static std::mutex& mutex = *new std::mutex;
  return mutex;
}

bool IsCapturing() { return captures > 0; }
void NoteCaptures(int difference) { captures += difference; }

void ReturnIfAlive() {
  while (Hangs()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

cudaError_t AppendWork(const std::shared_ptr<Queue>& queue, const StreamWork& work) {
  if (work.kind.has_value()) Count(*work.kind, work.copied_bytes);
  // Copies run in any case: the host reads what they bring.
  if (!Gpu().runs_work && work.kind != Work::kCopy) return cudaSuccess;
  return Append(queue, {.is_ready = work.is_ready, .run = work.run});
}

cudaError_t EnqueueWork(cudaStream_t stream, StreamWork work) {
  if (stream == nullptr) {
    RunWork(work.run);
    return cudaSuccess;
  }
  if (stream->capture == nullptr) return AppendWork(stream->queue, work);
  stream->capture->Add({.branch = stream->branch, .work = std::move(work)});
  return cudaSuccess;
}

cudaError_t Enqueue(cudaStream_t stream, std::function<void()> work, Work kind, int64_t copied_bytes) {
  return EnqueueWork(stream, {.run = std::move(work), .kind = kind, .copied_bytes = copied_bytes});
}

}  // namespace starring::cuda_emulation

// For libraries that a program opens and that enqueue work (tests/nccl_stub). Returns a cudaError_t. The work is not
// counted: it is the library's.
extern "C" int StarringEnqueueOnEmulatedStream(void* stream, std::function<bool()> is_ready,
                                               std::function<void()> run) {
  return starring::cuda_emulation::EnqueueWork(static_cast<cudaStream_t>(stream),
                                               {.is_ready = std::move(is_ready), .run = std::move(run), .kind = {}});
}

using starring::cuda_emulation::Await;
using starring::cuda_emulation::EndOf;
using starring::cuda_emulation::EventMutex;
using starring::cuda_emulation::Gpu;
using starring::cuda_emulation::IsReached;
using starring::cuda_emulation::Point;
using starring::cuda_emulation::PointOf;
using starring::cuda_emulation::ReturnIfAlive;
using starring::cuda_emulation::TextOf;

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
  const uint64_t uuid[2] = {starring::cuda_emulation::BootNumber(), static_cast<uint64_t>(ordinal)};
  std::memcpy(properties->uuid.bytes, uuid, sizeof(uuid));
  properties->totalGlobalMem = static_cast<size_t>(Gpu().memory_bytes);
  properties->major = Gpu().compute_major;
  properties->minor = 0;
  properties->pciDomainID = 0;
  properties->pciBusID = 0x1b + (Gpu().is_one_gpu ? 0 : ordinal);
  properties->pciDeviceID = 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int ordinal) {
  if (ordinal < 0 || ordinal >= Gpu().count) return cudaErrorInvalidDevice;
  if (starring::cuda_emulation::EnvironmentText("EMULATED_GPU_ANSWERS") == "no") return cudaErrorNotSupported;
  if (attribute != cudaDevAttrIpcEventSupport) return cudaErrorInvalidValue;
  *value = Gpu().ipc == starring::cuda_emulation::EmulatedGpu::Ipc::kNothing ? 0 : 1;
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

cudaError_t cudaDeviceSynchronize() {
  ReturnIfAlive();
  if (starring::cuda_emulation::IsCapturing()) return cudaErrorStreamCaptureUnsupported;
  return starring::cuda_emulation::AwaitAll();
}

cudaError_t cudaGetLastError() { return cudaSuccess; }

const char* cudaGetErrorName(cudaError_t error) { return TextOf(error).name; }
const char* cudaGetErrorString(cudaError_t error) { return TextOf(error).text; }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  starring::cuda_emulation::BeginStream();
  *stream = new CudaEmulatedStream;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  // Asynchronous streams finish their work later, as in CUDA.
  const cudaError_t error = Gpu().async ? cudaSuccess : Await(EndOf(stream->queue));
  delete stream;
  starring::cuda_emulation::EndStream();
  return error;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  ReturnIfAlive();
  if (stream->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
  starring::cuda_emulation::CountHostWait();
  return Await(EndOf(stream->queue));
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  ReturnIfAlive();
  if (stream->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
  return IsReached(EndOf(stream->queue)) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CudaEmulatedEvent;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  ReturnIfAlive();
  Point point;
  const cudaError_t error = PointOf(event, &point);
  starring::cuda_emulation::CountHostWait();
  return error == cudaSuccess ? Await(point) : error;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (starring::cuda_emulation::Hangs()) return cudaErrorNotReady;  // a driver answers for a GPU that does not
  Point point;
  if (const cudaError_t error = PointOf(event, &point); error != cudaSuccess) return error;
  // Queries until the event is reached are one wait.
  const bool is_reached = IsReached(point);
  if (std::exchange(event->was_early, !is_reached) && is_reached) starring::cuda_emulation::CountHostWait();
  return is_reached ? cudaSuccess : cudaErrorNotReady;
}
