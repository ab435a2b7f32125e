// A small emulation of CUDA on the host, for tests: the sources of kernels/cuda, compiled by the host compiler with
// this header in the place of CUDA's, run without a GPU and without nvcc.
//
// The emulation works as follows:
// - Blocks of a grid run in turn. The threads of a block are fibres of one host thread. Each runs until it comes to
//   __syncthreads or a warp operation, where it waits for the others. A thread that ends while others wait for it stops
//   the test with both numbers; a GPU would hang.
// - The thread or block that is taken first changes from barrier to barrier and from grid to grid, in a fixed sequence.
//   So a kernel that is right in one order only is wrong in some launch.
// - `__shared__` variables are statics. Device memory is host memory filled with NaN: AddressSanitizer sees accesses
//   outside of an allocation, UndefinedBehaviorSanitizer those that are not aligned, and tests see values that no
//   kernel wrote. A multiple of 2 MiB has pages of its own and, after them, a page that ends a process which touches
//   it. Only its owner can export such memory to other processes, and no other memory can be exported. A handle of its
//   middle opens its begin.
// - Streams are synchronous, as late as they may be, or asynchronous (emulated_gpu.h). Captured work is recorded, and
//   run only when its graph is launched. A call that CUDA forbids in a capture fails.
// - A captured stream is a branch of the graph. Branches wait for each other where an event was recorded and awaited,
//   and nowhere else.
// - Streams wait for values in memory, and write values, by the driver's cuStreamBatchMemOp (cuda.h).
// - Copies check that the device's side is device memory. cuBLASLt's products are loops (cublasLt.h).
//
// The emulation cannot find these errors:
// - most races between warps and between blocks, and most missing barriers, because threads take turns and run until
//   they wait;
// - wrong assumptions about memory order, except those that EmulatedGpu::Ipc::kLateVisible shows;
// - a missing event between two streams or between two branches of a graph, except where streams are late or
//   asynchronous: then a test finds it, with asynchronous streams for some seeds only;
// - reads of shared memory that an earlier block wrote;
// - host code that reads device memory.
// It says nothing about speed. Events between processes (cudaIpcGetEventHandle) do not exist.
//
// One grid runs at a time in a process. It supports what kernels/cuda uses: blocks and grids of three dimensions,
// static shared memory, full or partial warp masks, and one atomic operation, atomicInc. Fences of the device do
// nothing, so a missing one is not found. A kernel that waits for a word of another process keeps all other grids of
// its own from running, as one that fills a GPU does.
#ifndef STARRING_TESTS_CUDA_EMULATION_INCLUDE_CUDA_RUNTIME_H_
#define STARRING_TESTS_CUDA_EMULATION_INCLUDE_CUDA_RUNTIME_H_

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tests/cuda_emulation/counters.h"

// The language.
#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __launch_bounds__(...)
#define __grid_constant__

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_in = 1, unsigned y_in = 1, unsigned z_in = 1) : x(x_in), y(y_in), z(z_in) {}
};
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

// The runtime.
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorDeviceUninitialized = 201,
  cudaErrorMapBufferObjectFailed = 205,
  cudaErrorPeerAccessUnsupported = 217,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorLaunchOutOfResources = 701,
  cudaErrorLaunchTimeout = 702,
  cudaErrorNotSupported = 801,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureUnmatched = 903,
  cudaErrorStreamCaptureUnjoined = 904,
  cudaErrorCapturedEvent = 907,
};
enum cudaMemcpyKind {
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4,
};
enum cudaDeviceAttr { cudaDevAttrIpcEventSupport = 125 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal = 0, cudaStreamCaptureModeThreadLocal = 1 };
inline constexpr unsigned cudaStreamNonBlocking = 1;
inline constexpr unsigned cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2;
inline constexpr unsigned cudaEventRecordDefault = 0, cudaEventRecordExternal = 1;
inline constexpr unsigned cudaEventWaitDefault = 0, cudaEventWaitExternal = 1;
inline constexpr unsigned cudaHostRegisterDefault = 0, cudaHostRegisterPortable = 1, cudaHostRegisterMapped = 2;
inline constexpr unsigned cudaHostRegisterReadOnly = 8;
inline constexpr unsigned cudaIpcMemLazyEnablePeerAccess = 1;

using cudaStream_t = struct CudaEmulatedStream*;
using cudaEvent_t = struct CudaEmulatedEvent*;
using cudaGraph_t = struct CudaEmulatedGraph*;
using cudaGraphExec_t = struct CudaEmulatedGraph*;

struct cudaUUID_t {
  char bytes[16];
};
struct cudaIpcMemHandle_t {
  char reserved[64];
};
struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
  size_t totalGlobalMem;
  int major, minor;
  int pciDomainID, pciBusID, pciDeviceID;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
};

cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int ordinal);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int ordinal);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaSetDevice(int ordinal);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaDeviceCanAccessPeer(int* can, int ordinal, int peer);
cudaError_t cudaGetLastError();
const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaMalloc(void** data, size_t size_bytes);
cudaError_t cudaFree(void* data);
cudaError_t cudaMallocHost(void** data, size_t size_bytes);
cudaError_t cudaFreeHost(void* data);
cudaError_t cudaHostRegister(void* data, size_t size_bytes, unsigned flags);
cudaError_t cudaHostUnregister(void* data);
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned flags);
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes);
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* data);
cudaError_t cudaIpcOpenMemHandle(void** data, cudaIpcMemHandle_t handle, unsigned flags);
cudaError_t cudaIpcCloseMemHandle(void* data);
cudaError_t cudaMemcpy(void* to, const void* from, size_t size_bytes, cudaMemcpyKind kind);
cudaError_t cudaMemset(void* to, int value, size_t size_bytes);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size_bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* to, int value, size_t size_bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = cudaEventWaitDefault);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable);

// Functions that kernels call.
namespace starring::cuda_emulation {

// Leaves `work` in the stream, or records it if the stream is being captured.
cudaError_t Enqueue(cudaStream_t stream, std::function<void()> work, Work kind = Work::kLibrary,
                    int64_t copied_bytes = 0);
cudaError_t EnqueueGrid(const cudaLaunchConfig_t& config, std::function<void()> thread);

enum class WarpOperation { kShuffle, kBallot, kSync };
// Waits for the lanes of `mask`. Returns the value of lane `source`, or for kBallot the lanes whose value is not zero.
uint64_t MeetWarp(WarpOperation operation, unsigned mask, uint64_t value, int source);
int LaneOfThisThread();

// For kernels/cuda/system_scope.h, whose functions are PTX where nvcc compiles them. `word` is aligned, and has 1, 4 or
// 8 bytes.
uint64_t LoadAcquire(const void* word, size_t word_bytes);
void StoreRelease(void* word, size_t word_bytes, uint64_t value);
// Nanoseconds of a clock that all processes share.
uint64_t GlobalTimer();

template <typename T>
T Shuffle(unsigned mask, T value, int source) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  return std::bit_cast<T>(
      static_cast<Bits>(MeetWarp(WarpOperation::kShuffle, mask, std::bit_cast<Bits>(value), source)));
}

}  // namespace starring::cuda_emulation

void __syncthreads();
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  starring::cuda_emulation::MeetWarp(starring::cuda_emulation::WarpOperation::kSync, mask, 0, 0);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return static_cast<unsigned>(
      starring::cuda_emulation::MeetWarp(starring::cuda_emulation::WarpOperation::kBallot, mask, predicate != 0, 0));
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int source) {
  return starring::cuda_emulation::Shuffle(mask, value, source % 32);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes) {
  return starring::cuda_emulation::Shuffle(mask, value, starring::cuda_emulation::LaneOfThisThread() ^ lanes);
}
// A lane without a source keeps its own value.
template <typename T>
T __shfl_down_sync(unsigned mask, T value, int distance) {
  const int lane = starring::cuda_emulation::LaneOfThisThread();
  return starring::cuda_emulation::Shuffle(mask, value, lane + distance < 32 ? lane + distance : lane);
}
// *counter becomes *counter + 1, or 0 after `last`. Returns the value from before.
inline unsigned atomicInc(unsigned* counter, unsigned last) {
  const unsigned before = *counter;
  *counter = before >= last ? 0 : before + 1;
  return before;
}
inline void __threadfence() {}
void __threadfence_system();
void __nanosleep(unsigned ns);
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>((uint64_t{a} * b) >> 32); }
inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }

// Arguments are copied, as by a real launch: the caller may change them before captured work runs.
template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  return starring::cuda_emulation::EnqueueGrid(
      *config, [kernel, parameters = std::tuple<Parameters...>(std::forward<Arguments>(arguments)...)] {
        std::apply(kernel, parameters);
      });
}

#endif  // STARRING_TESTS_CUDA_EMULATION_INCLUDE_CUDA_RUNTIME_H_
