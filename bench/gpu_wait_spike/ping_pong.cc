#include <cuda_runtime.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "bench/gpu_wait_spike/gpu.h"
#include "bench/gpu_wait_spike/parts.h"
#include "common/base/status.h"

// Streams that pace each other take kChunk rounds at a time. All of a chunk is enqueued before its first round begins,
// else the time of the host's calls would be measured. Process 0 stamps the time at the begin of each round.
namespace starring::gpu_wait {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kChunk = 48;  // a multiple of kPeriod, so that the words have the same values in every chunk
constexpr std::chrono::milliseconds kDrainLimit{4000};
constexpr std::chrono::milliseconds kTimeLimit{6000};
constexpr int kHostWarmup = 20;
constexpr int64_t kBlockBytes = 2 << 20;
constexpr uint64_t kOver = std::numeric_limits<uint64_t>::max();

class Rounds {
 public:
  Rounds(Peer* peer, Gpu* gpu, const PingPong& job) : peer_(*peer), gpu_(*gpu), job_(job) {}

  absl::Status Run() {
    RETURN_IF_ERROR(FindWords());
    ASSIGN_OR_RETURN(void* const stamps, gpu_.Allocate((kChunk + 1) * sizeof(uint64_t)));
    stamps_ = static_cast<uint64_t*>(stamps);
    cudaGraphExec_t graph = nullptr;
    if (job_.capture == Capture::kGraph) {
      ASSIGN_OR_RETURN(graph, CaptureChunk());
    }
    const Clock::time_point begin = Clock::now();
    // The first chunk loads kernels and uploads the graph: its times are dropped.
    for (int chunk = 0;; ++chunk) {
      const bool more = (chunk - 1) * kChunk < job_.rounds && Clock::now() - begin < kTimeLimit;
      // Process 0 decides for both, because their clocks may reach the limit in different chunks.
      ASSIGN_OR_RETURN(const bool theirs_more, peer_.Swap(more));
      if (!(peer_.index() == 0 ? more : theirs_more)) break;
      RETURN_IF_ERROR(graph != nullptr ? LaunchChunk(graph) : EnqueueGatedChunk(static_cast<uint64_t>(chunk)));
      RETURN_IF_ERROR(gpu_.Drain({mine_, gate_}, kDrainLimit), "chunk ", chunk);
      if (chunk > 0 && peer_.index() == 0) RETURN_IF_ERROR(AddSamples());
    }
    // The mapping goes before the meeting, after which the owner of the memory may end.
    if (mapped_ != nullptr) RETURN_IF_ERROR(CudaStatus(cudaIpcCloseMemHandle(mapped_), "cudaIpcCloseMemHandle"));
    return peer_.Meet();
  }

 private:
  absl::Status FindWords() {
    gate_ = gpu_.BoardWordOf(BoardWord::kGate);
    if (job_.place == WordPlace::kHostPage) {
      const bool is_first = peer_.index() == 0;
      mine_ = gpu_.BoardWordOf(is_first ? BoardWord::kAwaitedBy0 : BoardWord::kAwaitedBy1);
      theirs_ = gpu_.BoardWordOf(is_first ? BoardWord::kAwaitedBy1 : BoardWord::kAwaitedBy0);
      return absl::OkStatus();
    }
    // Each process waits at a word of its own memory.
    // A handle of a smaller allocation may open at the begin of a shared block (ShareInnerMemory), so this takes a
    // whole one.
    ASSIGN_OR_RETURN(void* const memory, gpu_.Allocate(kBlockBytes));
    cudaIpcMemHandle_t handle = {};
    RETURN_IF_ERROR(CudaStatus(cudaIpcGetMemHandle(&handle, memory), "cudaIpcGetMemHandle"));
    ASSIGN_OR_RETURN(const cudaIpcMemHandle_t their_handle, peer_.Swap(handle));
    RETURN_IF_ERROR(CudaStatus(cudaIpcOpenMemHandle(&mapped_, their_handle, cudaIpcMemLazyEnablePeerAccess),
                               "cudaIpcOpenMemHandle"));
    mine_.device = static_cast<uint64_t*>(memory);
    theirs_.device = static_cast<uint64_t*>(mapped_);
    return absl::OkStatus();
  }

  absl::Status Wait(const Word& word, uint64_t value) {
    return job_.way == WaitWay::kMemoryOperation ? gpu_.WaitByMemoryOperation(word, value)
                                                 : gpu_.WaitByKernel(word, value);
  }
  absl::Status Write(const Word& word, uint64_t value) {
    if (job_.way == WaitWay::kMemoryOperation) return gpu_.WriteByMemoryOperation(word, value);
    return CudaStatus(StoreWord(gpu_.stream(), word.device, value), "a kernel that stores a word");
  }
  absl::Status StampAt(int index) { return CudaStatus(Stamp(gpu_.stream(), stamps_ + index), "a kernel that stamps"); }

  absl::Status EnqueueChunk() {
    for (int round = 0; round < kChunk; ++round) {
      const uint64_t value = 1 + static_cast<uint64_t>(round) % kPeriod;
      if (peer_.index() == 0) {
        RETURN_IF_ERROR(StampAt(round));
        RETURN_IF_ERROR(Write(theirs_, value));
        RETURN_IF_ERROR(Wait(mine_, value));
      } else {
        RETURN_IF_ERROR(Wait(mine_, value));
        RETURN_IF_ERROR(StampAt(round));
        RETURN_IF_ERROR(Write(theirs_, value));
      }
    }
    return StampAt(kChunk);
  }

  absl::StatusOr<cudaGraphExec_t> CaptureChunk() {
    RETURN_IF_ERROR(
        CudaStatus(cudaStreamBeginCapture(gpu_.stream(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture"));
    const absl::Status enqueued = EnqueueChunk();
    cudaGraph_t graph = nullptr;
    // The capture ends even after an error: a stream in capture refuses all other work.
    const cudaError_t ended = cudaStreamEndCapture(gpu_.stream(), &graph);
    RETURN_IF_ERROR(enqueued, "in a capture");
    RETURN_IF_ERROR(CudaStatus(ended, "cudaStreamEndCapture"));
    cudaGraphExec_t executable = nullptr;
    RETURN_IF_ERROR(CudaStatus(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate"));
    return executable;
  }

  // Process 1 waits when process 0 begins.
  absl::Status LaunchChunk(cudaGraphExec_t graph) {
    if (peer_.index() == 0) RETURN_IF_ERROR(peer_.Meet());
    RETURN_IF_ERROR(CudaStatus(cudaGraphLaunch(graph, gpu_.stream()), "cudaGraphLaunch"));
    return peer_.index() == 1 ? peer_.Meet() : absl::OkStatus();
  }

  absl::Status EnqueueGatedChunk(uint64_t chunk) {
    // The gate's last value differs from this one, so the opening for the last chunk does not let this one through.
    const uint64_t opened = 1 + chunk % kPeriod;
    // Process 1 needs no gate: its first wait is for process 0's word.
    if (peer_.index() == 0) RETURN_IF_ERROR(Wait(gate_, opened));
    if (const absl::Status enqueued = EnqueueChunk(); !enqueued.ok()) {
      gpu_.Drain({mine_, gate_}, std::chrono::milliseconds{0}).IgnoreError();  // else the stream would stay at the gate
      return enqueued;
    }
    RETURN_IF_ERROR(peer_.Meet());
    if (peer_.index() == 0) peer_.word(BoardWord::kGate).store(opened);
    return absl::OkStatus();
  }

  absl::Status AddSamples() {
    std::array<uint64_t, kChunk + 1> stamps;
    RETURN_IF_ERROR(CudaStatus(cudaMemcpy(stamps.data(), stamps_, sizeof(stamps), cudaMemcpyDefault), "cudaMemcpy"));
    for (size_t i = 0; i < kChunk; ++i) peer_.AddSample(0, static_cast<double>(stamps[i + 1] - stamps[i]) * 1e-3);
    return absl::OkStatus();
  }

  Peer& peer_;
  Gpu& gpu_;
  const PingPong job_;
  Word mine_, theirs_, gate_;
  void* mapped_ = nullptr;
  uint64_t* stamps_ = nullptr;
};

// A kernel, and the host's wait for it.
absl::Status RunOneKernel(Gpu& gpu, const PingPong& job, uint64_t* stamp, cudaEvent_t event) {
  RETURN_IF_ERROR(CudaStatus(Stamp(gpu.stream(), stamp), "a kernel that stamps"));
  RETURN_IF_ERROR(CudaStatus(cudaEventRecord(event, gpu.stream()), "cudaEventRecord"));
  if (job.way == WaitWay::kHostBlocks) return CudaStatus(cudaEventSynchronize(event), "cudaEventSynchronize");
  const Clock::time_point end = Clock::now() + kDrainLimit;
  cudaError_t error = cudaEventQuery(event);
  for (; error == cudaErrorNotReady; error = cudaEventQuery(event)) {
    if (Clock::now() > end) return absl::DeadlineExceededError("a kernel of one thread took 4 s");
  }
  return CudaStatus(error, "cudaEventQuery");
}

absl::StatusOr<uint64_t> WaitForChange(Peer& peer, BoardWord which, uint64_t before) {
  const Clock::time_point begin = Clock::now();
  while (true) {
    const uint64_t value = peer.word(which).load();
    if (value != before) return value;
    const Clock::duration waited = Clock::now() - begin;
    if (waited > std::chrono::microseconds{50}) {
      RETURN_IF_ERROR(peer.StillWanted());
      if (waited > kDrainLimit) return absl::DeadlineExceededError("the other process did not answer in 4 s");
      sched_yield();
    }
  }
}

absl::Status RunHostPaced(Peer& peer, Gpu& gpu, const PingPong& job) {
  const unsigned flags = cudaEventDisableTiming | (job.way == WaitWay::kHostBlocks ? cudaEventBlockingSync : 0u);
  cudaEvent_t event = nullptr;
  RETURN_IF_ERROR(CudaStatus(cudaEventCreateWithFlags(&event, flags), "cudaEventCreateWithFlags"));
  ASSIGN_OR_RETURN(void* const memory, gpu.Allocate(sizeof(uint64_t)));
  auto* const stamp = static_cast<uint64_t*>(memory);
  RETURN_IF_ERROR(peer.Meet());
  const Clock::time_point begin = Clock::now();
  if (peer.index() == 1) {
    // The board begins with zeros and rounds count from 1, so each change is the next round.
    for (uint64_t round = 0;;) {
      ASSIGN_OR_RETURN(round, WaitForChange(peer, BoardWord::kAwaitedBy1, round));
      if (round == kOver) return peer.Meet();
      RETURN_IF_ERROR(RunOneKernel(gpu, job, stamp, event));
      peer.word(BoardWord::kAwaitedBy0).store(round);
    }
  }
  for (int round = 1; round <= job.rounds + kHostWarmup && Clock::now() - begin < kTimeLimit; ++round) {
    const Clock::time_point start = Clock::now();
    RETURN_IF_ERROR(RunOneKernel(gpu, job, stamp, event));
    peer.word(BoardWord::kAwaitedBy1).store(static_cast<uint64_t>(round));
    RETURN_IF_ERROR(WaitForChange(peer, BoardWord::kAwaitedBy0, static_cast<uint64_t>(round - 1)).status());
    const std::chrono::duration<double, std::micro> took = Clock::now() - start;
    if (round > kHostWarmup) peer.AddSample(0, took.count());
  }
  // Process 0 may stop early, so process 1 does not count rounds but waits for this value.
  peer.word(BoardWord::kAwaitedBy1).store(kOver);
  return peer.Meet();
}

}  // namespace

absl::Status RunPingPong(Peer& peer, const PingPong& job) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Gpu> gpu, Gpu::Open(&peer));
  if (job.way == WaitWay::kHostPolls || job.way == WaitWay::kHostBlocks) return RunHostPaced(peer, *gpu, job);
  return Rounds(&peer, gpu.get(), job).Run();
}

absl::Status RunKernelsAlone(Peer& peer) {
  if (peer.index() != 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::unique_ptr<Gpu> gpu, Gpu::Open(&peer));
  ASSIGN_OR_RETURN(void* const memory, gpu->Allocate((kChunk + 1) * sizeof(uint64_t)));
  auto* const stamps = static_cast<uint64_t*>(memory);
  RETURN_IF_ERROR(
      CudaStatus(cudaStreamBeginCapture(gpu->stream(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture"));
  cudaError_t enqueued = cudaSuccess;
  for (int i = 0; i <= kChunk && enqueued == cudaSuccess; ++i) enqueued = Stamp(gpu->stream(), stamps + i);
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(gpu->stream(), &graph);
  RETURN_IF_ERROR(CudaStatus(enqueued, "a kernel that stamps"));
  RETURN_IF_ERROR(CudaStatus(ended, "cudaStreamEndCapture"));
  cudaGraphExec_t executable = nullptr;
  RETURN_IF_ERROR(CudaStatus(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate"));
  for (int chunk = 0; chunk < 5; ++chunk) {
    RETURN_IF_ERROR(CudaStatus(cudaGraphLaunch(executable, gpu->stream()), "cudaGraphLaunch"));
    RETURN_IF_ERROR(gpu->Drain({}, kDrainLimit));
    std::array<uint64_t, kChunk + 1> times;
    RETURN_IF_ERROR(CudaStatus(cudaMemcpy(times.data(), stamps, sizeof(times), cudaMemcpyDefault), "cudaMemcpy"));
    for (size_t i = 0; i < kChunk && chunk > 0; ++i) {
      peer.AddSample(0, static_cast<double>(times[i + 1] - times[i]) * 1e-3);
    }
  }
  return absl::OkStatus();
}

}  // namespace starring::gpu_wait
