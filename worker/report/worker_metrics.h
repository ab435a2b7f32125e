// What --metrics_port shows of a worker: steps, samples, where the time goes, bytes exchanged, loss and accuracy.
//
// Thread safety: one thread, the trainer's; the numbers may be fetched at any time.
#ifndef STARRING_WORKER_REPORT_WORKER_METRICS_H_
#define STARRING_WORKER_REPORT_WORKER_METRICS_H_

#include <array>

#include "common/metrics/metrics.h"
#include "worker/report/run_observer.h"

namespace starring {

class WorkerMetrics final : public RunObserver {
 public:
  // `metrics` outlives it.
  explicit WorkerMetrics(Metrics* metrics);

  void OnStep(const StepReport& report) override;
  void OnEpoch(const EpochSummary& summary, int64_t next_step) override;

 private:
  Metrics::Counter* const steps_;
  Metrics::Counter* const samples_;
  Metrics::Counter* const sent_bytes_;
  Metrics::Counter* const received_bytes_;
  Metrics::Gauge* const step_;
  Metrics::Gauge* const loss_;
  Metrics::Gauge* const epochs_;
  Metrics::Gauge* const train_loss_;
  Metrics::Gauge* const test_accuracy_;
  Metrics::Gauge* const samples_per_second_;
  std::array<Metrics::Counter*, kStepPartCount> part_seconds_;
};

}  // namespace starring

#endif  // STARRING_WORKER_REPORT_WORKER_METRICS_H_
