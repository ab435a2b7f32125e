// The driver's interface as a program has it that opens libcuda.so.1 at run time (worker/python/gpu/cuda_driver.h), on
// the emulated runtime. Kernels are found by name, whatever image they were loaded from.
//
// The functions whose names begin with emulated_ are for tests.
#include <cuda_runtime.h>

#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string_view>
#include <thread>

#include "worker/python/gpu/gpu_sums.h"

#define STARRING_KERNEL(name, Args) extern "C" void name(starring::Args arguments)
STARRING_KERNEL(starring_star_sum_float32, GpuStarSum);
STARRING_KERNEL(starring_star_sum_bfloat16, GpuStarSum);
STARRING_KERNEL(starring_star_sum_float16, GpuStarSum);
STARRING_KERNEL(starring_ring_add_float32, GpuRingAdd);
STARRING_KERNEL(starring_ring_add_bfloat16, GpuRingAdd);
STARRING_KERNEL(starring_ring_add_float16, GpuRingAdd);
STARRING_KERNEL(starring_ring_copy_32, GpuRingCopy);
STARRING_KERNEL(starring_ring_copy_16, GpuRingCopy);

namespace {

using Address = unsigned long long;  // CUdeviceptr

constexpr int kNotFound = 500;        // CUDA_ERROR_NOT_FOUND
constexpr int kInvalidContext = 201;  // CUDA_ERROR_INVALID_CONTEXT
constexpr int kInvalidImage = 200;    // CUDA_ERROR_INVALID_IMAGE
constexpr unsigned kFatBinary = 0xba55ed50;

struct Kernel {
  std::string_view name;
  cudaError_t (*launch)(const cudaLaunchConfig_t& config, const void* argument);
};

template <typename Args, void (*kKernel)(Args)>
cudaError_t LaunchWith(const cudaLaunchConfig_t& config, const void* argument) {
  return cudaLaunchKernelEx(&config, kKernel, *static_cast<const Args*>(argument));
}

using starring::GpuRingAdd;
using starring::GpuRingCopy;
using starring::GpuStarSum;
constexpr Kernel kKernels[] = {
    {"starring_star_sum_float32", LaunchWith<GpuStarSum, starring_star_sum_float32>},
    {"starring_star_sum_bfloat16", LaunchWith<GpuStarSum, starring_star_sum_bfloat16>},
    {"starring_star_sum_float16", LaunchWith<GpuStarSum, starring_star_sum_float16>},
    {"starring_ring_add_float32", LaunchWith<GpuRingAdd, starring_ring_add_float32>},
    {"starring_ring_add_bfloat16", LaunchWith<GpuRingAdd, starring_ring_add_bfloat16>},
    {"starring_ring_add_float16", LaunchWith<GpuRingAdd, starring_ring_add_float16>},
    {"starring_ring_copy_32", LaunchWith<GpuRingCopy, starring_ring_copy_32>},
    {"starring_ring_copy_16", LaunchWith<GpuRingCopy, starring_ring_copy_16>},
};

std::atomic<int64_t> device_copies = 0, host_copies = 0;  // on a device; to or from a host

// A context is the ordinal of its GPU, and one. A thread without one may use no memory and no stream.
thread_local uintptr_t contexts[8] = {};
thread_local int context_count = 0;

bool HasContext() { return context_count > 0; }

void SetTop(uintptr_t context) {
  contexts[context_count - 1] = context;
  if (context != 0) cudaSetDevice(static_cast<int>(context) - 1);
}

void* PointerTo(Address address) { return std::bit_cast<void*>(address); }

template <typename Call>
int InContext(Call call) {
  return HasContext() ? static_cast<int>(call()) : kInvalidContext;
}

}  // namespace

extern "C" {

int cuInit(unsigned flags) {
  int count = 0;
  return flags == 0 ? static_cast<int>(cudaGetDeviceCount(&count)) : static_cast<int>(cudaErrorInvalidValue);
}

int cuDeviceGet(int* device, int ordinal) {
  int count = 0;
  cudaGetDeviceCount(&count);
  if (ordinal < 0 || ordinal >= count) return cudaErrorInvalidDevice;
  *device = ordinal;
  return 0;
}

int cuGetErrorName(int error, const char** name) {
  *name = cudaGetErrorName(static_cast<cudaError_t>(error));
  return 0;
}
int cuGetErrorString(int error, const char** text) {
  *text = cudaGetErrorString(static_cast<cudaError_t>(error));
  return 0;
}

int cuDevicePrimaryCtxRetain(uintptr_t* context, int device) {
  *context = static_cast<uintptr_t>(device) + 1;
  return 0;
}
int cuDevicePrimaryCtxRelease_v2(int) { return 0; }
int cuCtxPushCurrent_v2(uintptr_t context) {
  if (context_count == static_cast<int>(std::size(contexts))) return cudaErrorInvalidValue;
  ++context_count;
  SetTop(context);
  return 0;
}
int cuCtxPopCurrent_v2(uintptr_t* context) {
  if (!HasContext()) return kInvalidContext;
  *context = contexts[--context_count];
  if (HasContext()) SetTop(contexts[context_count - 1]);
  return 0;
}
int cuCtxSetCurrent(uintptr_t context) {
  if (!HasContext()) ++context_count;
  SetTop(context);
  return 0;
}

int cuModuleLoadData(void** module, const void* image) {
  unsigned magic = 0;
  std::memcpy(&magic, image, sizeof(magic));
  if (magic != kFatBinary) return kInvalidImage;
  static int any;
  *module = &any;
  return HasContext() ? 0 : kInvalidContext;
}
int cuModuleUnload(void*) { return 0; }
int cuModuleGetFunction(const Kernel** function, void*, const char* name) {
  for (const Kernel& kernel : kKernels) {
    if (kernel.name != name) continue;
    *function = &kernel;
    return 0;
  }
  return kNotFound;
}
int cuLaunchKernel(const Kernel* kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_bytes, cudaStream_t stream, void** arguments,
                   void**) {
  if (std::getenv("EMULATED_DRIVER_REFUSES_LAUNCHES") != nullptr) return cudaErrorInvalidValue;
  const cudaLaunchConfig_t config = {.gridDim = {grid_x, grid_y, grid_z},
                                     .blockDim = {block_x, block_y, block_z},
                                     .dynamicSmemBytes = shared_bytes,
                                     .stream = stream};
  return InContext([&] { return kernel->launch(config, arguments[0]); });
}

int cuMemAlloc_v2(Address* address, size_t size_bytes) {
  void* data = nullptr;
  const int result = InContext([&] { return cudaMalloc(&data, size_bytes); });
  *address = std::bit_cast<Address>(data);
  return result;
}
int cuMemFree_v2(Address address) {
  return InContext([&] { return cudaFree(PointerTo(address)); });
}
int cuIpcGetMemHandle(cudaIpcMemHandle_t* handle, Address address) {
  return InContext([&] { return cudaIpcGetMemHandle(handle, PointerTo(address)); });
}
int cuIpcOpenMemHandle_v2(Address* address, cudaIpcMemHandle_t handle, unsigned flags) {
  void* data = nullptr;
  const int result = InContext([&] { return cudaIpcOpenMemHandle(&data, handle, flags); });
  *address = std::bit_cast<Address>(data);
  return result;
}
int cuIpcCloseMemHandle(Address address) {
  return InContext([&] { return cudaIpcCloseMemHandle(PointerTo(address)); });
}

int cuMemcpyDtoDAsync_v2(Address to, Address from, size_t size_bytes, cudaStream_t stream) {
  ++device_copies;
  return InContext(
      [&] { return cudaMemcpyAsync(PointerTo(to), PointerTo(from), size_bytes, cudaMemcpyDeviceToDevice, stream); });
}
int cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t size_bytes, cudaStream_t stream) {
  ++host_copies;
  return InContext([&] { return cudaMemcpyAsync(PointerTo(to), from, size_bytes, cudaMemcpyHostToDevice, stream); });
}
int cuMemcpyDtoHAsync_v2(void* to, Address from, size_t size_bytes, cudaStream_t stream) {
  ++host_copies;
  return InContext([&] { return cudaMemcpyAsync(to, PointerTo(from), size_bytes, cudaMemcpyDeviceToHost, stream); });
}

int cuStreamCreate(cudaStream_t* stream, unsigned flags) {
  return InContext([&] { return cudaStreamCreateWithFlags(stream, flags); });
}
int cuStreamDestroy_v2(cudaStream_t stream) { return cudaStreamDestroy(stream); }
int cuStreamSynchronize(cudaStream_t stream) { return cudaStreamSynchronize(stream); }
int cuStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return cudaStreamWaitEvent(stream, event, flags);
}
int cuEventCreate(cudaEvent_t* event, unsigned flags) {
  return InContext([&] { return cudaEventCreateWithFlags(event, flags); });
}
int cuEventDestroy_v2(cudaEvent_t event) { return cudaEventDestroy(event); }
int cuEventRecord(cudaEvent_t event, cudaStream_t stream) { return cudaEventRecord(event, stream); }
int cuEventSynchronize(cudaEvent_t event) { return cudaEventSynchronize(event); }

// The copies so far.
int64_t emulated_device_copies() { return device_copies; }
int64_t emulated_host_copies() { return host_copies; }

// Asynchronous streams do nothing any more once `stream` has come to this work.
void emulated_hang(cudaStream_t stream) {
  starring::cuda_emulation::Enqueue(stream, [] {
    while (true) std::this_thread::sleep_for(std::chrono::seconds(1));
  });
}

}  // extern "C"
