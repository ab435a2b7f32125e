// Where the time of this rank's steps goes: wall-clock time by part of a step, and the processor time of the process.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_STEP_STEP_TIMER_H_
#define STARRING_WORKER_STEP_STEP_TIMER_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <vector>

#include "common/metrics/trace.h"
#include "common/watch/progress_state.h"

namespace starring {

enum class StepPart { kDataWait, kHostToDevice, kForward, kBackward, kExposedExchange, kOptimizer, kOther };
inline constexpr int kStepPartCount = 7;

struct StepSummary {
  double p50_ms = 0, p95_ms = 0, p99_ms = 0, max_ms = 0, mean_ms = 0;
  int64_t steps_measured = 0;
  std::array<double, kStepPartCount> part_ms = {};  // by StepPart: mean per step; the sum is mean_ms
};

// The summary of these times, without parts.
StepSummary SummaryOf(std::vector<float> steps_ms);

class StepTimer {
 public:
  using Clock = std::chrono::steady_clock;

  // The summary leaves out the first `warmup_steps` steps. `track`: the timed thread's trace track; may be null.
  // `progress`: told of every part that is entered, with the same reading of the clock; may be null. Both outlive the
  // timer.
  explicit StepTimer(int64_t warmup_steps, TraceTrack* track = nullptr, ProgressState* progress = nullptr);

  TraceTrack* track() const { return track_; }
  ProgressState* progress() const { return progress_; }

  void BeginStep();
  // From now on, time belongs to `part`. Returns the part that time belonged to before, so that a nested part can
  // restore it.
  StepPart Enter(StepPart part);
  void EndStep();
  // By StepPart, of the last step that was begun, also during the warm-up.
  const std::array<double, kStepPartCount>& part_seconds() const { return step_parts_; }
  // Forward and backward of the same step.
  double compute_seconds() const {
    return step_parts_[static_cast<int>(StepPart::kForward)] + step_parts_[static_cast<int>(StepPart::kBackward)];
  }

  // Whether the step that was begun last belongs to the warm-up.
  bool is_warming_up() const { return warmup_left_ > 0; }

  StepSummary Summary() const;

 private:
  TraceTrack* const track_;
  ProgressState* const progress_;
  int64_t warmup_left_;
  Clock::time_point step_begin_;
  Clock::time_point part_begin_;
  StepPart part_ = StepPart::kOther;
  std::array<double, kStepPartCount> step_parts_ = {};  // seconds in the current step
  std::array<double, kStepPartCount> sums_ = {};        // seconds in all measured steps
  std::vector<float> step_ms_;                          // of each measured step; 4 bytes each
};

// CPU time of this process, all threads, over the stretches of wall-clock time between Resume and Pause.
class ProcessorUse {
 public:
  // Begins a stretch. No effect inside a stretch.
  void Resume();
  // Ends the stretch. No effect outside one.
  void Pause();
  // CPU time over wall-clock time of the stretches that have ended: 100 is one core; 0 without a stretch.
  double percent() const;

 private:
  using Clock = std::chrono::steady_clock;

  bool watching_ = false;
  Clock::time_point wall_begin_;
  double cpu_begin_ = 0;
  double wall_seconds_ = 0;
  double cpu_seconds_ = 0;
};

}  // namespace starring

#endif  // STARRING_WORKER_STEP_STEP_TIMER_H_
