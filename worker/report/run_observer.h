// Who wants to know, while a run goes on, how it goes: dashboards. The trainer tells all of them; without any it does
// nothing for it.
//
// Thread safety: the trainer's thread makes all calls.
#ifndef STARRING_WORKER_REPORT_RUN_OBSERVER_H_
#define STARRING_WORKER_REPORT_RUN_OBSERVER_H_

#include <array>
#include <cstdint>
#include <span>

#include "worker/exchange/gradient_exchange.h"
#include "worker/report/progress.h"
#include "worker/step/step_timer.h"
#include "worker/step/training_step.h"

namespace starring {

struct StepReport {
  std::span<const FinishedStep> finished;           // whose losses are known since the last report
  std::array<double, kStepPartCount> part_seconds;  // of the step that has just ended, by StepPart
  const GradientExchange* exchange = nullptr;       // for its counters
};

class RunObserver {
 public:
  virtual ~RunObserver() = default;
  virtual void OnStep(const StepReport& report) = 0;
  // `next_step`: the first one of the next epoch.
  virtual void OnEpoch(const EpochSummary& summary, int64_t next_step) = 0;
};

}  // namespace starring

#endif  // STARRING_WORKER_REPORT_RUN_OBSERVER_H_
