#include "worker/step/step_timer.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace starring {
namespace {

double Seconds(StepTimer::Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

// The nearest-rank percentile. REQUIRES: the values ascend; there is at least one.
double Percentile(const std::vector<float>& ascending, double fraction) {
  const auto rank = static_cast<size_t>(std::ceil(fraction * static_cast<double>(ascending.size())));
  return ascending[std::max<size_t>(rank, 1) - 1];
}

// The phase that a stall report names for time in `part`.
WorkPhase PhaseOf(StepPart part) {
  switch (part) {
    case StepPart::kDataWait:
    case StepPart::kHostToDevice:
      return WorkPhase::kReadData;
    case StepPart::kForward:
      return WorkPhase::kForward;
    case StepPart::kBackward:
      return WorkPhase::kBackward;
    case StepPart::kExposedExchange:
    // Only a single worker has this part: its exchange does nothing but apply the optimizer.
    case StepPart::kOptimizer:
      return WorkPhase::kExchange;
    case StepPart::kOther:
      break;
  }
  return WorkPhase::kBetweenSteps;
}

double ProcessSeconds() {
  timespec time = {};
  // The clock counts all threads of the process, so ProcessorUse::percent may exceed 100.
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

StepTimer::StepTimer(int64_t warmup_steps, TraceTrack* track, ProgressState* progress)
    : track_(track), progress_(progress), warmup_left_(warmup_steps) {}

// Time between EndStep and BeginStep (evaluation, checkpoints) belongs to no step.
void StepTimer::BeginStep() {
  step_begin_ = part_begin_ = Clock::now();
  part_ = StepPart::kOther;
  step_parts_ = {};
}

StepPart StepTimer::Enter(StepPart part) {
  // One reading of the clock ends a part, begins the next and tells `progress_`: the parts of a step add up exactly.
  const Clock::time_point now = Clock::now();
  step_parts_[static_cast<int>(part_)] += Seconds(now - part_begin_);
  part_begin_ = now;
  if (progress_ != nullptr) progress_->Enter(PhaseOf(part), now);
  return std::exchange(part_, part);
}

void StepTimer::EndStep() {
  Enter(StepPart::kOther);
  if (warmup_left_ > 0) {
    --warmup_left_;
    return;
  }
  for (int i = 0; i < kStepPartCount; ++i) sums_[i] += step_parts_[i];
  // part_begin_ is the reading of the clock with which Enter has ended the step's last part.
  step_ms_.push_back(static_cast<float>(1e3 * Seconds(part_begin_ - step_begin_)));
}

StepSummary SummaryOf(std::vector<float> steps_ms) {
  StepSummary summary;
  if (steps_ms.empty()) return summary;
  std::sort(steps_ms.begin(), steps_ms.end());
  summary.steps_measured = static_cast<int64_t>(steps_ms.size());
  summary.p50_ms = Percentile(steps_ms, 0.50);
  summary.p95_ms = Percentile(steps_ms, 0.95);
  summary.p99_ms = Percentile(steps_ms, 0.99);
  summary.max_ms = steps_ms.back();
  summary.mean_ms = std::accumulate(steps_ms.begin(), steps_ms.end(), 0.0) / static_cast<double>(steps_ms.size());
  return summary;
}

StepSummary StepTimer::Summary() const {
  // The copy and the sort of all steps happen once, at the end of the run.
  StepSummary summary = SummaryOf(step_ms_);
  if (step_ms_.empty()) return summary;
  summary.mean_ms = 0;
  for (int i = 0; i < kStepPartCount; ++i) {
    // The mean is the sum of the parts and no quotient of its own, so that the two agree to the last digit.
    summary.part_ms[i] = 1e3 * sums_[i] / static_cast<double>(step_ms_.size());
    summary.mean_ms += summary.part_ms[i];
  }
  return summary;
}

void ProcessorUse::Resume() {
  if (watching_) return;
  watching_ = true;
  wall_begin_ = Clock::now();
  cpu_begin_ = ProcessSeconds();
}

void ProcessorUse::Pause() {
  if (!watching_) return;
  watching_ = false;
  wall_seconds_ += std::chrono::duration<double>(Clock::now() - wall_begin_).count();
  cpu_seconds_ += ProcessSeconds() - cpu_begin_;
}

double ProcessorUse::percent() const { return wall_seconds_ > 0 ? 100 * cpu_seconds_ / wall_seconds_ : 0; }

}  // namespace starring
