// The two observers of a run that people look at while it goes on: numbers for --metrics_port, and TensorBoard.
//
// Thread safety: one thread, the trainer's. The numbers of --metrics_port may be fetched at any time.
#ifndef STARRING_WORKER_REPORT_DASHBOARDS_H_
#define STARRING_WORKER_REPORT_DASHBOARDS_H_

#include <array>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/metrics/metrics.h"
#include "worker/train/progress.h"

namespace starring {

// Steps, samples, where the time goes, bytes exchanged, loss and accuracy of this worker, as metrics for Prometheus.
class WorkerMetrics final : public RunObserver {
 public:
  // `metrics` outlives the observer.
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

// Writes an event file that TensorBoard can open during the run.
//
//   step/loss, step/accuracy           of this rank's samples, means over the steps since the last point
//   step/samples_per_second            of all workers together
//   step/exposed_exchange_ms           of this rank, per step
//   epoch/train_loss, epoch/test_loss, epoch/test_accuracy, epoch/samples_per_second, epoch/exposed_exchange_ms
//
// The x axis is the step; an epoch's points are at its last step. Samples per second are those of training: the time of
// evaluation and checkpoints does not count.
class Tensorboard final : public RunObserver {
 public:
  struct Options {
    std::string dir;               // created if it does not exist; each run writes a new file
    int64_t steps_per_point = 20;  // for step/...; at least 1
  };
  // InvalidArgument if no file can be written there.
  static absl::StatusOr<std::unique_ptr<Tensorboard>> Create(const Options& options);
  ~Tensorboard() override;

  void OnStep(const StepReport& report) override;
  void OnEpoch(const EpochSummary& summary, int64_t next_step) override;

 private:
  using Values = std::vector<std::pair<const char*, double>>;

  Tensorboard(Options options, std::string path, std::FILE* file);
  void Write(int64_t step, const Values& values);
  [[nodiscard]] bool WriteRecord(const std::string& record);

  const Options options_;
  const std::string path_;
  std::FILE* file_;  // null after a failed write: training goes on without points

  // Since the last point.
  int64_t steps_ = 0;
  int64_t finished_ = 0;
  int64_t samples_ = 0;  // this rank's
  int64_t global_samples_ = 0;
  double loss_sum_ = 0;
  int64_t correct_ = 0;
  double seconds_ = 0;
  double exchange_seconds_ = 0;
  // Since the last epoch.
  int64_t epoch_steps_ = 0;
  double epoch_exchange_seconds_ = 0;
};

}  // namespace starring

#endif  // STARRING_WORKER_REPORT_DASHBOARDS_H_
