// Where the time of a step goes. Wall-clock, this rank.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_STEP_STEP_TIMER_H_
#define STARRING_WORKER_STEP_STEP_TIMER_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <vector>

#include "common/progress_state.h"
#include "common/trace.h"

namespace starring {

enum class StepPart { kDataWait, kHostToDevice, kForward, kBackward, kExposedExchange, kOptimizer, kOther };
inline constexpr int kStepPartCount = 7;

struct StepSummary {
  double p50_ms = 0, p95_ms = 0, p99_ms = 0, max_ms = 0, mean_ms = 0;
  int64_t steps_measured = 0;
  std::array<double, kStepPartCount> part_ms = {};  // mean per step, by StepPart; adds up to mean_ms
};

class StepTimer {
 public:
  using Clock = std::chrono::steady_clock;

  // The first `warmup_steps` steps are counted but not measured.
  // `track`, of the timed thread, is for whoever has the timer; null: there is no trace. `progress` is told of every
  // part that is entered, by the same look at the clock; null: nobody asks. Both outlive the timer.
  explicit StepTimer(int64_t warmup_steps, TraceTrack* track = nullptr, ProgressState* progress = nullptr);

  TraceTrack* track() const { return track_; }
  ProgressState* progress() const { return progress_; }

  void BeginStep();
  // From here on time belongs to `part`; returns the part it belonged to until now, so that a nested part can give it
  // back.
  StepPart Enter(StepPart part);
  void EndStep();
  // Of the last step that was begun, by StepPart; warm-up or not.
  const std::array<double, kStepPartCount>& part_seconds() const { return step_parts_; }

  StepSummary Summary() const;

 private:
  TraceTrack* const track_;
  ProgressState* const progress_;
  int64_t warmup_left_;
  Clock::time_point step_begin_;
  Clock::time_point part_begin_;
  StepPart part_ = StepPart::kOther;
  std::array<double, kStepPartCount> step_parts_ = {};  // seconds, of the step under way
  std::array<double, kStepPartCount> sums_ = {};        // seconds, of all measured steps
  std::vector<float> step_ms_;                          // 4 bytes a step
};

}  // namespace starring

#endif  // STARRING_WORKER_STEP_STEP_TIMER_H_
