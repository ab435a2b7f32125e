#include "worker/exchange/peer/gpu/gpu_flags_trial.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/arithmetic/optimizer.h"
#include "common/arithmetic/reduction_order.h"
#include "common/base/status.h"

namespace starring {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRounds = 100;
// More rounds, in a graph: not every driver captures such waits.
constexpr int kCapturedRounds = StreamExchange::kSlots;
constexpr int kAllRounds = kRounds + kCapturedRounds;
// Kernels of another stream that run beside the first rounds, as those of a training step do.
constexpr int kBusyKernels = 50;
// Elements for each rank: several blocks of a kernel share them.
constexpr int64_t kElements = 2048;
// Much more than the rounds take, also where ranks take turns on one GPU.
constexpr std::chrono::seconds kDeadline{10};
constexpr std::chrono::seconds kDrainDeadline{5};

class Trial {
 public:
  Trial(MessagePump& pump, CudaDevice* device, const GpuMemory& memory, GpuFlags* flags)
      : pump_(pump),
        device_(*device),
        memory_(memory),
        bucket_(flags->trial_bucket()),
        flags_(*flags),
        rank_(pump.rank()),
        ranks_(pump.world_size()),
        count_(std::min<int64_t>(kElements * ranks_, std::ssize(memory.gradients(0)))) {}

  absl::Status Prepare();
  absl::Status EnqueueAll();
  // Waits for the GPU, and goes on with messages meanwhile.
  absl::Status AwaitGpu();
  // Ends the GPU's waits: some rank has enqueued less than all rounds.
  void Drain();
  bool is_stuck() const { return is_stuck_; }
  absl::Status Check();
  absl::Status Restore();

 private:
  static float PatternOf(int rank, int round, int64_t element) {
    return static_cast<float>((element * 31 + rank * 977) % 1021 + round);
  }
  float* Pattern(int round) const { return static_cast<float*>(patterns_->data()) + round * count_; }
  absl::Status Fill(float gradient);
  absl::Status EnqueueRound(int round);
  bool HasPassed(Clock::duration deadline, bool releases, absl::Status* error);

  MessagePump& pump_;
  CudaDevice& device_;
  const GpuMemory& memory_;
  const int bucket_;
  GpuFlags& flags_;
  const int rank_, ranks_;
  const int64_t count_;
  std::unique_ptr<PinnedBuffer> patterns_;  // by round
  std::unique_ptr<DeviceBuffer> scratch_;
  std::unique_ptr<CudaVectorMath> busy_;
  std::unique_ptr<CudaStream> stream_;
  std::unique_ptr<CudaEvent> done_;
  std::unique_ptr<CudaGraph> graph_;
  bool is_stuck_ = false;  // the GPU cannot be brought to an end
};

absl::Status Trial::Fill(float gradient) {
  const std::vector<float> gradients(static_cast<size_t>(count_), gradient), zeros(gradients.size(), 0.0f);
  device_.CopyToDevice(gradients.data(), memory_.gradients(rank_).data(), count_ * kFloatBytes);
  device_.CopyToDevice(zeros.data(), memory_.parameters(rank_).data(), count_ * kFloatBytes);
  return device_.Synchronize();
}

// A rank that reads a gradient before it is there finds NaN, or that of the round before.
absl::Status Trial::Prepare() {
  ASSIGN_OR_RETURN(stream_, device_.CreateStream());
  ASSIGN_OR_RETURN(done_, device_.CreateEvent());
  ASSIGN_OR_RETURN(busy_, device_.CreateVectorMath());
  ASSIGN_OR_RETURN(scratch_, device_.Allocate(count_ * kFloatBytes));
  ASSIGN_OR_RETURN(patterns_, device_.AllocatePinned(kAllRounds * count_ * kFloatBytes));
  for (int round = 0; round < kAllRounds; ++round) {
    for (int64_t e = 0; e < count_; ++e) Pattern(round)[e] = PatternOf(rank_, round, e);
  }
  return Fill(std::numeric_limits<float>::quiet_NaN());
}

absl::Status Trial::EnqueueRound(int round) {
  const int slot = StreamExchange::SlotOf(round);
  RETURN_IF_ERROR(stream_->CopyToDevice(Pattern(round), memory_.gradients(rank_).data(), count_ * kFloatBytes));
  RETURN_IF_ERROR(flags_.Arrive(stream_.get(), slot, bucket_));
  RETURN_IF_ERROR(flags_.AwaitArrivals(stream_.get(), slot, bucket_));
  const int part = (rank_ + round) % ranks_;
  CudaPeerUpdate update = {.rows = ElementRange{part * count_ / ranks_, (part + 1) * count_ / ranks_},
                           .element_count = count_,
                           .reduction = {.order = SumOrder::kChain, .world_size = ranks_},
                           .rank = rank_,
                           .learning_rate = 1.0f};
  for (int other = 0; other < ranks_; ++other) {
    update.gradients[other] = memory_.gradients(other).data();
    update.parameters[other] = memory_.parameters(other).data();
  }
  RETURN_IF_ERROR(flags_.Update(stream_.get(), slot, bucket_, nullptr, OptimizerConfig{}, update));
  return flags_.AwaitUpdates(stream_.get(), slot, bucket_, bucket_ + 1);
}

absl::Status Trial::EnqueueAll() {
  for (int round = 0; round < kRounds; ++round) {
    RETURN_IF_ERROR(EnqueueRound(round));
    if (round < kBusyKernels) busy_->Add(scratch_->floats(), scratch_->floats(), scratch_->floats(), count_);
  }
  RETURN_IF_ERROR(stream_->Record(done_.get()));
  RETURN_IF_ERROR(device_.stream()->Wait(done_.get()));
  RETURN_IF_ERROR(device_.BeginCapture());
  absl::Status status = device_.Fork(stream_.get());
  for (int round = kRounds; round < kAllRounds; ++round) status.Update(EnqueueRound(round));
  status.Update(device_.Join(stream_.get()));
  // Also after an error, which the stream would otherwise keep.
  absl::StatusOr<std::unique_ptr<CudaGraph>> graph = device_.EndCapture();
  RETURN_IF_ERROR(status);
  RETURN_IF_ERROR(graph.status());
  graph_ = *std::move(graph);
  RETURN_IF_ERROR(graph_->Launch());
  return device_.stream()->Record(done_.get());
}

bool Trial::HasPassed(Clock::duration deadline, bool releases, absl::Status* error) {
  for (const Clock::time_point end = Clock::now() + deadline; Clock::now() < end;) {
    const absl::StatusOr<bool> passed = done_->HasPassed();
    if (!passed.ok()) *error = passed.status();
    if (!passed.ok() || *passed) return true;
    // A rank that dies is heard of.
    if (!pump_.Pump().ok() && !releases) return false;
    if (releases) flags_.Release();
    std::this_thread::sleep_for(GpuFlags::kReleasePause);
  }
  return false;
}

void Trial::Drain() {
  flags_.SayVoid();
  absl::Status error = stream_->Record(done_.get());
  if (error.ok()) error = device_.stream()->Wait(done_.get());
  if (error.ok()) error = device_.stream()->Record(done_.get());
  is_stuck_ = !error.ok() || !HasPassed(kDrainDeadline, true, &error);
}

absl::Status Trial::AwaitGpu() {
  absl::Status error;
  if (HasPassed(kDeadline, false, &error)) return error;
  Drain();
  return absl::UnavailableError(absl::StrCat("its GPU has waited in vain for ", std::chrono::seconds(kDeadline).count(),
                                             " s for flags of other ranks", is_stuck_ ? ", and still waits" : ""));
}

absl::Status Trial::Check() {
  if (flags_.is_void()) return absl::UnavailableError("another rank has given up the trial");
  RETURN_IF_ERROR(busy_->Synchronize());
  std::vector<float> found(static_cast<size_t>(count_));
  device_.CopyToHost(memory_.parameters(rank_).data(), found.data(), count_ * kFloatBytes);
  RETURN_IF_ERROR(device_.Synchronize());
  for (int64_t e = 0; e < count_; ++e) {
    float expected = 0;  // of integers, whose sums are exact
    for (int rank = 0; rank < ranks_; ++rank) {
      for (int round = 0; round < kAllRounds; ++round) expected -= PatternOf(rank, round, e);
    }
    if (found[static_cast<size_t>(e)] == expected) continue;
    return absl::UnavailableError(absl::StrCat("after ", kAllRounds, " updates in the order of streams its GPU has ",
                                               found[static_cast<size_t>(e)], " and not ", expected));
  }
  return absl::OkStatus();
}

absl::Status Trial::Restore() { return Fill(0.0f); }

}  // namespace

absl::Status TryGpuFlags(MessagePump& pump, CudaDevice* device, const GpuMemory& memory, GpuFlags* flags,
                         const CollectiveOptions& join, absl::Status* why) {
  auto owned = std::make_unique<Trial>(pump, device, memory, flags);
  Trial& trial = *owned;
  *why = trial.Prepare();
  // The others' GPUs would wait for the rounds of a rank that enqueues none.
  absl::Status agreed = *why;
  RETURN_IF_ERROR(AgreeOnFirstError(pump, join, &agreed));
  if (!agreed.ok()) return absl::OkStatus();
  *why = trial.EnqueueAll();
  // The others' GPUs wait for rounds that an error has left out, and this is sooner told than a wait in vain.
  agreed = *why;
  RETURN_IF_ERROR(AgreeOnFirstError(pump, join, &agreed));
  if (agreed.ok()) {
    *why = trial.AwaitGpu();
  } else {
    trial.Drain();
  }
  // The destructor would wait for the GPU for ever.
  if (trial.is_stuck()) static_cast<void>(owned.release());
  RETURN_IF_ERROR(Barrier(pump, join));
  if (!agreed.ok()) return absl::OkStatus();
  if (why->ok()) *why = trial.Check();
  RETURN_IF_ERROR(Barrier(pump, join));
  if (why->ok()) *why = trial.Restore();
  return Barrier(pump, join);
}

}  // namespace starring
