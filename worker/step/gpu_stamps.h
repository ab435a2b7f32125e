// How long the GPU waits for the exchange, by its own clock.
//
// Words. A *gap*: the device's stream has done all that it was given, and goes on only when parameters have come. The
// first gap of a step begins where the step before has written its last gradient. With several buckets, forward may
// have more gaps, one before each segment (cuda_training_step.h).
//
//   stream   ..., backward of t | gap | forward of t + 1, first segment | gap | second segment, backward | gap | ...
//   stamps                      B     E                                 B     E                          B     E
//
// The *exposed exchange* of a step is the sum of its gaps. Everything that keeps the stream waiting belongs to a gap:
// copies to and from the host, the other ranks, the host's thread that wakes up and launches. So do a loader that is
// late, the copy of the batch that the step waits for, and the ranks' vote about once a second whether to stop.
//
// A stamp is a node of the graph that writes to pinned memory (CudaDevice::Stamp). Each slot has its stamps, which are
// read when the slot's step has ended, so nothing waits for them.
//
// The first step, and a step after Settle, have no first gap: the GPU has had an evaluation, a checkpoint or nothing to
// do. exposed() is without such a step.
//
// Thread safety: one thread, the device's.
#ifndef STARRING_WORKER_STEP_GPU_STAMPS_H_
#define STARRING_WORKER_STEP_GPU_STAMPS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/metrics/trace.h"
#include "kernels/cuda/cuda_device.h"
#include "worker/step/step_timer.h"

namespace starring {

class GpuStamps {
 public:
  // `segment_max`: of a step. `device` outlives the stamps. ResourceExhausted with the number of bytes.
  static absl::StatusOr<std::unique_ptr<GpuStamps>> Create(CudaDevice* device, int slot_count, int segment_max);

  // `track` gets the GPU's row of the timeline, and may be null. `timer` says which steps are measured.
  absl::Status Begin(const StepTimer* timer, TraceTrack* track);

  // Enqueued, in a capture or not, around each segment of the step on `slot`. The last EndSegment follows the last
  // gradient.
  void BeginStep(int slot);
  void BeginSegment();
  void EndSegment();
  // The step on `slot` has been captured or enqueued with BeginStep, and runs now.
  void Ran(int slot, int segment_count) { of_[static_cast<size_t>(slot)].ran = segment_count; }
  int segment_count() const { return begun_; }  // since BeginStep

  // The step on `slot` has ended, which must be called in the order of the steps.
  void Finish(int slot, int64_t step);
  // No step is in flight. The time until the next step is no gap.
  absl::Status Settle();

  StepSummary exposed() const { return SummaryOf(exposed_ms_); }

 private:
  struct Slot {
    uint64_t* begins = nullptr;  // of segments
    uint64_t* ends = nullptr;
    int ran = 0;  // segments of the step that ran last
  };

  GpuStamps(CudaDevice* device, int slot_count, int segment_max);
  absl::Status CompareClocks();
  void Trace(const char* name, uint64_t begin, uint64_t end, int64_t step) const;

  CudaDevice& device_;
  const int segment_max_;
  std::unique_ptr<PinnedBuffer> memory_;
  std::vector<Slot> of_;
  uint64_t* clock_ = nullptr;
  const StepTimer* timer_ = nullptr;
  TraceTrack* track_ = nullptr;
  int64_t host_ahead_ns_ = 0;  // TraceNow - the GPU's clock
  int slot_ = 0;               // of BeginStep
  int begun_ = 0;
  uint64_t last_end_ = 0;  // of the step before; 0: no gap begins there
  std::vector<float> exposed_ms_;
};

}  // namespace starring

#endif  // STARRING_WORKER_STEP_GPU_STAMPS_H_
