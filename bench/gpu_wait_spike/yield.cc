#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "bench/gpu_wait_spike/gpu.h"
#include "bench/gpu_wait_spike/parts.h"
#include "common/base/status.h"

// Whether a wait of process 1 takes the GPU from process 0: process 0 runs the same kernels while process 1 is idle and
// while it waits, in turns.
namespace starring::gpu_wait {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::duration<double, std::milli>;

constexpr int kRepeats = 5;
constexpr int kKernels = 25;
// About as long as a GPU gives to one process before it looks at the next one.
constexpr double kKernelMs = 2;
// Process 1's kernels outlast process 0's, whose turns they take.
constexpr int kOtherKernels = 4 * kKernels;
constexpr std::chrono::milliseconds kDrainLimit{4000};

class Kernels {
 public:
  static absl::StatusOr<Kernels> Create(Gpu* gpu) {
    ASSIGN_OR_RETURN(void* const sink, gpu->Allocate(sizeof(float)));
    return Kernels(gpu, static_cast<float*>(sink));
  }

  int64_t iterations() const { return computation_.iterations; }
  void set_iterations(int64_t iterations) { computation_.iterations = iterations; }

  absl::Status Enqueue(int count) {
    for (int i = 0; i < count; ++i) {
      RETURN_IF_ERROR(CudaStatus(Compute(gpu_->stream(), computation_, sink_), "a kernel that computes"));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<double> Time(int count) {
    const Clock::time_point begin = Clock::now();
    RETURN_IF_ERROR(Enqueue(count));
    RETURN_IF_ERROR(gpu_->Drain({}, kDrainLimit));
    return Milliseconds(Clock::now() - begin).count();
  }

  // Chooses the iterations of a kernel of kKernelMs.
  absl::Status Calibrate() {
    constexpr int kCount = 4;
    for (computation_.iterations = 1000; computation_.iterations < int64_t{1} << 32; computation_.iterations *= 2) {
      ASSIGN_OR_RETURN(double least_ms, Time(kCount));
      // The least of three, because other work on the machine can only make a launch slower.
      for (int i = 0; i < 2; ++i) {
        ASSIGN_OR_RETURN(const double took_ms, Time(kCount));
        least_ms = std::min(least_ms, took_ms);
      }
      // From half the wanted time on launches cost little, so the time is proportional to the iterations.
      if (least_ms < kCount * kKernelMs / 2) continue;
      const double factor = kCount * kKernelMs / least_ms;
      computation_.iterations = static_cast<int64_t>(static_cast<double>(computation_.iterations) * factor);
      return absl::OkStatus();
    }
    return absl::InternalError("no number of iterations takes long enough");
  }

 private:
  Kernels(Gpu* gpu, float* sink)
      : gpu_(gpu), sink_(sink), computation_{.multiprocessors = gpu->multiprocessors(), .iterations = 0} {}

  Gpu* gpu_;
  float* sink_;
  Computation computation_;
};

absl::Status TakePart(Peer& peer, Gpu& gpu, Meanwhile meanwhile, Kernels& kernels) {
  Word word = gpu.BoardWordOf(BoardWord::kAwaitedBy1);
  if (meanwhile == Meanwhile::kWaitsByMemoryOperationOnDevice) {
    ASSIGN_OR_RETURN(void* const memory, gpu.Allocate(sizeof(uint64_t)));
    word = {.device = static_cast<uint64_t*>(memory), .host = nullptr};
  }
  // The stream of `gpu` waits at the word, so another one has to write the word.
  cudaStream_t writer = nullptr;
  RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithFlags(&writer, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"));
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    // The word still has the last repeat's value, so this repeat waits for another one.
    const uint64_t value = 1 + static_cast<uint64_t>(repeat) % kPeriod;
    RETURN_IF_ERROR(peer.Meet());  // process 0 times its kernels alone
    RETURN_IF_ERROR(peer.Meet());
    // So that the wait is not the first thing that this process does on the GPU.
    RETURN_IF_ERROR(kernels.Time(1).status());
    if (meanwhile == Meanwhile::kComputes) {
      RETURN_IF_ERROR(kernels.Enqueue(kOtherKernels));
    } else if (meanwhile == Meanwhile::kWaitsBySpinningKernel) {
      RETURN_IF_ERROR(gpu.WaitByKernel(word, value));
    } else {
      RETURN_IF_ERROR(gpu.WaitByMemoryOperation(word, value));
    }
    RETURN_IF_ERROR(peer.Meet());  // process 0 times them with this
    RETURN_IF_ERROR(peer.Meet());
    if (word.host != nullptr) {
      peer.word(BoardWord::kAwaitedBy1).store(value);
    } else {
      RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(word.device, &value, sizeof(value), cudaMemcpyDefault, writer),
                                 "a copy while another stream waits"));
    }
    RETURN_IF_ERROR(gpu.Drain({word}, kDrainLimit));
  }
  return peer.Meet();
}

absl::Status TimeBoth(Peer& peer, Kernels& kernels) {
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    RETURN_IF_ERROR(peer.Meet());
    ASSIGN_OR_RETURN(const double alone_ms, kernels.Time(kKernels));
    peer.AddSample(0, alone_ms);
    RETURN_IF_ERROR(peer.Meet());
    RETURN_IF_ERROR(peer.Meet());
    ASSIGN_OR_RETURN(const double waited_for_ms, kernels.Time(kKernels));
    peer.AddSample(1, waited_for_ms);
    RETURN_IF_ERROR(peer.Meet());
  }
  return peer.Meet();
}

}  // namespace

absl::Status RunYield(Peer& peer, Meanwhile meanwhile) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Gpu> gpu, Gpu::Open(&peer));
  ASSIGN_OR_RETURN(Kernels kernels, Kernels::Create(gpu.get()));
  if (peer.index() == 0) RETURN_IF_ERROR(kernels.Calibrate());
  // Process 0 calibrates alone on the GPU: process 1 waits in Swap, and then runs kernels of the same length.
  ASSIGN_OR_RETURN(const int64_t theirs, peer.Swap(kernels.iterations()));
  if (peer.index() == 1) {
    kernels.set_iterations(theirs);
    return TakePart(peer, *gpu, meanwhile, kernels);
  }
  return TimeBoth(peer, kernels);
}

}  // namespace starring::gpu_wait
