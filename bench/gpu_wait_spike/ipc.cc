#include <cuda.h>
#include <cuda_runtime.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/gpu_wait_spike/gpu.h"
#include "bench/gpu_wait_spike/parts.h"
#include "common/base/status.h"

namespace starring::gpu_wait {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kBlockBytes = 2 << 20;  // an allocation that shares its block with no other
constexpr int64_t kSmallBytes = 256;
constexpr int64_t kWordBytes = sizeof(uint32_t);
constexpr std::chrono::milliseconds kDrainLimit{3000};
// Some 20 ms on an H100: process 1 asks for the event while it is not there yet.
constexpr int64_t kIterationsBeforeEvent = 100'000;

absl::StatusOr<cudaIpcMemHandle_t> HandleOf(void* memory) {
  cudaIpcMemHandle_t handle = {};
  RETURN_IF_ERROR(CudaStatus(cudaIpcGetMemHandle(&handle, memory), "cudaIpcGetMemHandle"));
  return handle;
}

absl::StatusOr<char*> OpenHandle(const cudaIpcMemHandle_t& handle) {
  void* memory = nullptr;
  // CUDA accepts no other value of the flags.
  RETURN_IF_ERROR(
      CudaStatus(cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess), "cudaIpcOpenMemHandle"));
  return static_cast<char*>(memory);
}

absl::Status CloseHandle(void* memory) { return CudaStatus(cudaIpcCloseMemHandle(memory), "cudaIpcCloseMemHandle"); }

absl::Status Fill(Gpu& gpu, void* memory, const Pattern& pattern) {
  RETURN_IF_ERROR(
      CudaStatus(FillPattern(gpu.stream(), pattern, static_cast<uint32_t*>(memory)), "a kernel that writes"));
  return gpu.Drain({}, kDrainLimit);
}

// The words that are not the pattern's.
absl::StatusOr<unsigned> Differences(Gpu& gpu, const void* memory, const Pattern& pattern) {
  ASSIGN_OR_RETURN(void* const count, gpu.Allocate(sizeof(unsigned)));
  RETURN_IF_ERROR(CudaStatus(
      CountDifferences(gpu.stream(), pattern, static_cast<const uint32_t*>(memory), static_cast<unsigned*>(count)),
      "a kernel that reads"));
  RETURN_IF_ERROR(gpu.Drain({}, kDrainLimit));
  unsigned differences = 0;
  RETURN_IF_ERROR(CudaStatus(cudaMemcpy(&differences, count, sizeof(differences), cudaMemcpyDefault), "cudaMemcpy"));
  return differences;
}

absl::Status Expect(Gpu& gpu, const void* memory, const Pattern& pattern, const char* what) {
  ASSIGN_OR_RETURN(const unsigned differences, Differences(gpu, memory, pattern));
  if (differences == 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(what, ": ", differences, " of ", pattern.count, " words are others"));
}

}  // namespace

absl::Status ShareMemory(Peer& peer) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Gpu> gpu, Gpu::Open(&peer));
  const auto me = static_cast<uint32_t>(peer.index()), other = 1 - me;
  // Each process has seeds of its own, so a handle that leads to the reader's own memory shows as differences.
  const auto pattern = [](uint32_t seed) { return Pattern{.count = kBlockBytes / kWordBytes, .seed = seed}; };
  ASSIGN_OR_RETURN(void* const mine, gpu->Allocate(kBlockBytes));
  RETURN_IF_ERROR(Fill(*gpu, mine, pattern(100 + me)));
  ASSIGN_OR_RETURN(const cudaIpcMemHandle_t handle, HandleOf(mine));
  ASSIGN_OR_RETURN(const cudaIpcMemHandle_t their_handle, peer.Swap(handle));
  const Clock::time_point begin = Clock::now();
  ASSIGN_OR_RETURN(char* const theirs, OpenHandle(their_handle));
  const std::chrono::duration<double, std::milli> took = Clock::now() - begin;
  RETURN_IF_ERROR(Expect(*gpu, theirs, pattern(100 + other), "reading the other process's memory"));
  // Without this meeting a process could overwrite memory that the other one has not checked yet.
  RETURN_IF_ERROR(peer.Meet());
  RETURN_IF_ERROR(Fill(*gpu, theirs, pattern(200 + me)));
  RETURN_IF_ERROR(peer.Meet());
  RETURN_IF_ERROR(Expect(*gpu, mine, pattern(200 + other), "reading what the other process wrote here"));
  // The owner frees only what nobody maps any longer.
  RETURN_IF_ERROR(CloseHandle(theirs));
  RETURN_IF_ERROR(peer.Meet());
  RETURN_IF_ERROR(CudaStatus(cudaFree(mine), "cudaFree"));
  peer.Note(absl::StrFormat("process %u reads and writes memory of process %u: 2 MiB exact, opened in %.2f ms", me,
                            other, took.count()));
  return absl::OkStatus();
}

absl::Status ShareEvent(Peer& peer) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Gpu> gpu, Gpu::Open(&peer));
  struct Handles {
    cudaIpcMemHandle_t memory;
    cudaIpcEventHandle_t event;
  };
  const Pattern pattern = {.count = kBlockBytes / kWordBytes, .seed = 300};
  if (peer.index() == 1) {
    ASSIGN_OR_RETURN(const Handles handles, peer.Swap(Handles{}));
    cudaEvent_t event = nullptr;
    RETURN_IF_ERROR(CudaStatus(cudaIpcOpenEventHandle(&event, handles.event), "cudaIpcOpenEventHandle"));
    ASSIGN_OR_RETURN(char* const memory, OpenHandle(handles.memory));
    RETURN_IF_ERROR(peer.Meet());  // ready
    // A wait for an event that was never recorded returns at once, so process 0 records it first.
    RETURN_IF_ERROR(peer.Meet());  // recorded
    RETURN_IF_ERROR(CudaStatus(cudaStreamWaitEvent(gpu->stream(), event), "cudaStreamWaitEvent"));
    RETURN_IF_ERROR(Expect(*gpu, memory, pattern, "after the other process's event"));
    RETURN_IF_ERROR(CloseHandle(memory));
    peer.Note("a stream of process 1 waits for an event of process 0, and sees what was written before it");
    return peer.Meet();
  }
  Handles handles = {};
  ASSIGN_OR_RETURN(void* const memory, gpu->Allocate(kBlockBytes));
  ASSIGN_OR_RETURN(handles.memory, HandleOf(memory));
  cudaEvent_t event = nullptr;
  // CUDA refuses an event between processes that takes times.
  RETURN_IF_ERROR(CudaStatus(cudaEventCreateWithFlags(&event, cudaEventInterprocess | cudaEventDisableTiming),
                             "cudaEventCreateWithFlags"));
  RETURN_IF_ERROR(CudaStatus(cudaIpcGetEventHandle(&handles.event, event), "cudaIpcGetEventHandle"));
  RETURN_IF_ERROR(peer.Swap(handles).status());
  RETURN_IF_ERROR(peer.Meet());
  // The kernels begin when process 1 has opened both handles. Otherwise they could be over before it waits.
  ASSIGN_OR_RETURN(void* const sink, gpu->Allocate(sizeof(float)));
  RETURN_IF_ERROR(CudaStatus(
      Compute(gpu->stream(), {.multiprocessors = gpu->multiprocessors(), .iterations = kIterationsBeforeEvent},
              static_cast<float*>(sink)),
      "a kernel that computes"));
  RETURN_IF_ERROR(
      CudaStatus(FillPattern(gpu->stream(), pattern, static_cast<uint32_t*>(memory)), "a kernel that writes"));
  RETURN_IF_ERROR(CudaStatus(cudaEventRecord(event, gpu->stream()), "cudaEventRecord"));
  RETURN_IF_ERROR(peer.Meet());
  RETURN_IF_ERROR(gpu->Drain({}, kDrainLimit));
  // Process 0 frees memory and event by ending, so it stays until process 1 has read them.
  return peer.Meet();
}

absl::Status ShareInnerMemory(Peer& peer) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Gpu> gpu, Gpu::Open(&peer));
  const Pattern pattern = {.count = kSmallBytes / kWordBytes, .seed = 400};
  constexpr const char* kPlaces[] = {"a second small allocation", "the middle of an allocation"};
  for (int place = 0; place < 2; ++place) {
    if (peer.index() == 0) {
      ASSIGN_OR_RETURN(void* const first, gpu->Allocate(place == 0 ? kSmallBytes : kBlockBytes));
      char* memory = static_cast<char*>(first) + kBlockBytes / 2;
      // CUDA may cut small allocations from one block, and a handle then names the whole block.
      if (place == 0) {
        ASSIGN_OR_RETURN(void* const second, gpu->Allocate(kSmallBytes));
        memory = static_cast<char*>(second);
        peer.Note(
            absl::StrCat("two allocations of 256 bytes are ", memory - static_cast<char*>(first), " bytes apart"));
      }
      RETURN_IF_ERROR(Fill(*gpu, memory, pattern));
      // A refused handle is a result too: process 1 then opens zeros, and notes CUDA's error.
      RETURN_IF_ERROR(peer.Swap(HandleOf(memory).value_or(cudaIpcMemHandle_t{})).status());
      RETURN_IF_ERROR(peer.Meet());
      continue;
    }
    ASSIGN_OR_RETURN(const cudaIpcMemHandle_t handle, peer.Swap(cudaIpcMemHandle_t{}));
    const absl::StatusOr<char*> memory = OpenHandle(handle);
    if (!memory.ok()) {
      peer.Note(absl::StrCat("a handle of ", kPlaces[place], ": ", std::string(memory.status().message())));
      RETURN_IF_ERROR(peer.Meet());
      continue;
    }
    CUdeviceptr base = 0;
    size_t size = 0;
    RETURN_IF_ERROR(gpu->driver().StatusOf(
        gpu->driver().mem_get_address_range(&base, &size, reinterpret_cast<CUdeviceptr>(*memory)),
        "cuMemGetAddressRange"));
    const auto offset = reinterpret_cast<CUdeviceptr>(*memory) - base;
    std::string where = "nowhere";
    ASSIGN_OR_RETURN(const unsigned here, Differences(*gpu, *memory, pattern));
    if (here == 0) {
      where = "at the opened address";
    } else if (place == 1 && size >= kBlockBytes) {
      ASSIGN_OR_RETURN(const unsigned middle, Differences(*gpu, *memory + kBlockBytes / 2, pattern));
      if (middle == 0) where = "at the same offset from the opened address, which is the allocation's begin";
    }
    peer.Note(absl::StrCat("a handle of ", kPlaces[place], " opens ", size, " bytes, ", offset,
                           " from their begin; its bytes are ", where));
    RETURN_IF_ERROR(CloseHandle(*memory));
    RETURN_IF_ERROR(peer.Meet());
  }
  return absl::OkStatus();
}

absl::Status OpenOwnMemory(Peer& peer) {
  if (peer.index() != 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::unique_ptr<Gpu> gpu, Gpu::Open(&peer));
  ASSIGN_OR_RETURN(void* const memory, gpu->Allocate(kBlockBytes));
  ASSIGN_OR_RETURN(const cudaIpcMemHandle_t handle, HandleOf(memory));
  const absl::StatusOr<char*> opened = OpenHandle(handle);
  peer.Note(opened.ok() ? std::string("a process opens a handle of its own")
                        : absl::StrCat("a process's own handle: ", std::string(opened.status().message())));
  return absl::OkStatus();
}

}  // namespace starring::gpu_wait
