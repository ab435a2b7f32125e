// Writes an event file that TensorBoard opens, while the run goes on.
//
//   step/loss, step/accuracy           of this rank's samples, means over the steps since the last point
//   step/samples_per_second            all workers
//   step/exposed_exchange_ms           of this rank, a step
//   epoch/train_loss, epoch/test_loss, epoch/test_accuracy, epoch/samples_per_second, epoch/exposed_exchange_ms
//
// The x axis is the step, for epochs their last. Samples per second are those of training: evaluation and checkpoints
// do not count.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_REPORT_TENSORBOARD_H_
#define STARRING_WORKER_REPORT_TENSORBOARD_H_

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/report/run_observer.h"

namespace starring {

class Tensorboard final : public RunObserver {
 public:
  struct Options {
    std::string dir;               // made if it is not there; one file a run
    int64_t steps_per_point = 20;  // of step/...
  };
  // InvalidArgument if nothing can be written there.
  static absl::StatusOr<std::unique_ptr<Tensorboard>> Create(const Options& options);
  ~Tensorboard() override;

  void OnStep(const StepReport& report) override;
  void OnEpoch(const EpochSummary& summary, int64_t next_step) override;

  const std::string& path() const { return path_; }

 private:
  using Values = std::vector<std::pair<const char*, double>>;

  Tensorboard(Options options, std::string path, std::FILE* file);
  void Write(int64_t step, const Values& values);
  bool WriteRecord(const std::string& record);

  const Options options_;
  const std::string path_;
  std::FILE* file_;  // null when it could not be written to: training goes on

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

#endif  // STARRING_WORKER_REPORT_TENSORBOARD_H_
