// Reports steps and epochs while a run goes on: to observers, and on the terminal.
//
// Thread safety: one thread, the trainer's.
#ifndef STARRING_WORKER_TRAIN_PROGRESS_H_
#define STARRING_WORKER_TRAIN_PROGRESS_H_

#include <array>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "worker/exchange/gradient_exchange.h"
#include "worker/model/quality.h"
#include "worker/options/worker_options.h"
#include "worker/step/step_timer.h"
#include "worker/step/training_step.h"

namespace starring {

struct EpochSummary {
  int64_t epoch = 0;  // counted from 0
  double train_loss = 0;
  double test_loss = 0;
  double test_accuracy = 0;  // in [0, 1]
  double seconds = 0;
  double samples_per_second = 0;
};

struct StepLoss {
  int64_t step = 0;
  double seconds = 0;  // of training when the step was finished, without evaluations and checkpoints
  double loss = 0;     // mean over the global batch
};

struct StepReport {
  std::span<const FinishedStep> finished;           // the steps whose losses have become known since the last report
  std::array<double, kStepPartCount> part_seconds;  // by StepPart, of the step that has just ended
  const GradientExchange* exchange = nullptr;       // for its counters
};

// Receives step and epoch results during a run, for dashboards. Costs nothing when no observer is registered.
class RunObserver {
 public:
  virtual ~RunObserver() = default;
  virtual void OnStep(const StepReport& report) = 0;
  // `next_step` is the first step of the next epoch.
  virtual void OnEpoch(const EpochSummary& summary, int64_t next_step) = 0;
};

// Shows a run to a person: one live line on a terminal, or plain lines in a file.
class Progress {
 public:
  using Style = ProgressStyle;
  struct Options {
    Style style = Style::kPlain;
    std::FILE* out = nullptr;  // not owned
    int64_t epochs = 0;
    int64_t steps_per_epoch = 0;
    int64_t end_step = 0;
    LossKind loss = LossKind::kSoftmax;  // kMse has no accuracy, and shows the RMSE instead
  };
  explicit Progress(const Options& options);
  // Ends the live line, so that the next output, for instance why the run has failed, begins on a line of its own.
  ~Progress() { EndLine(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Prints at most ten times a second (kLive) or once in ten seconds (kPlain). Loss and accuracy are this rank's.
  void Step(const FinishedStep& step, absl::Time now);
  void EpochDone(const EpochSummary& summary);
  // After the last epoch.
  void QualityDone(const Quality& quality);
  // Something that lasts, for instance that a rank is slow; empty when it is over. kLive shows it at the end of the
  // live line from now on, kPlain prints a line.
  void Note(absl::string_view text);
  // Prints a line in every style, also kNone: warnings are not progress.
  void Message(absl::string_view text);
  // Takes the live line away, if there is one, so that others may print.
  void EndLine();

 private:
  Options options_;
  absl::Time next_print_ = absl::InfinitePast();
  absl::Time rate_time_ = absl::InfinitePast();
  int64_t rate_step_ = 0;
  double steps_per_second_ = 0;
  bool line_open_ = false;
  std::string note_;  // with kLive
};

}  // namespace starring

#endif  // STARRING_WORKER_TRAIN_PROGRESS_H_
