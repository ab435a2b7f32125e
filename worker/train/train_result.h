// The result of a run, or of one generation of an elastic run, as its trainer returns it.
#ifndef STARRING_WORKER_TRAIN_TRAIN_RESULT_H_
#define STARRING_WORKER_TRAIN_TRAIN_RESULT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/checkpoint/checkpoint.h"
#include "worker/exchange/gradient_exchange.h"
#include "worker/model/quality.h"
#include "worker/step/step_timer.h"
#include "worker/train/bucket_trial.h"
#include "worker/train/progress.h"
#include "worker/train/straggler_watch.h"

namespace starring {

// One worker's share of the machine in the measured steps.
struct WorkerUse {
  double compute_ms = 0;   // mean per step, forward and backward; 0: see TrainingStep::host_awaits_exchange
  double cpu_percent = 0;  // 100 is one core
};

struct TrainResult {
  std::vector<EpochSummary> epochs;
  int64_t steps = 0;                      // taken by this process
  int64_t next_step = 0;                  // the first step of a resumed run
  int64_t resumed_from_step = 0;          // by this process; 0: it has not resumed
  std::vector<std::string> resume_notes;  // the lines about the resume that a person must read
  bool stopped_early = false;
  bool converged = false;  // --early_stop has ended the run
  BestEpoch best;
  int64_t best_saved_step = 0;    // in `best` of --checkpoint_dir, by this process; only rank 0 knows
  bool checkpoint_saved = false;  // of next_step; only rank 0 knows
  std::string checkpoint_dir;     // where; only rank 0 knows
  StepSummary step_summary;
  std::optional<StepSummary> gpu_exposed;  // TrainingStep::gpu_exposed
  ExchangeCounters exchange;
  std::string parameter_sha256;
  int64_t total_steps = 0;  // of the whole run
  int64_t steps_per_epoch = 0;
  int64_t bucket_bytes = 0;                 // as rounded; of the last step
  std::vector<TriedBuckets> tried_buckets;  // by --bucket_bytes=auto in this run; empty: nothing was tried to the end
  std::vector<WorkerUse> workers;           // by rank
  std::vector<StragglerRecord> stragglers;  // in the order in which they were found
  std::vector<StepLoss> losses;             // with WorkerOptions::record_losses
  std::optional<Quality> quality;           // on the test set, by the parameters of the run's last step
  bool segment_over = false;                // stopped at a snapshot, for the next generation
  int64_t generation = 0;                   // Segment::number; of an elastic run, the last one's
  absl::Status reported;                    // NotWrittenError of the last checkpoint, else TrainOptions::report's
};

}  // namespace starring

#endif  // STARRING_WORKER_TRAIN_TRAIN_RESULT_H_
