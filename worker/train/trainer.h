// The training loop: one per worker, the same for every exchange.
//
//   for each step:  batch -> forward (before a layer: Await its buckets of the step before)
//                         -> backward (after a layer: Submit the buckets that are complete)
//   for each epoch: Await everything, test accuracy over all ranks, checkpoint by rank 0
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_TRAIN_TRAINER_H_
#define STARRING_WORKER_TRAIN_TRAINER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/job/bucket_map.h"
#include "common/metrics/trace.h"
#include "common/watch/progress_state.h"
#include "worker/data/dataset.h"
#include "worker/data/normalization.h"
#include "worker/exchange/gradient_exchange.h"
#include "worker/model/network.h"
#include "worker/options/deciding_facts.h"
#include "worker/options/worker_options.h"
#include "worker/step/step_timer.h"
#include "worker/step/training_step.h"
#include "worker/train/bucket_trial.h"
#include "worker/train/progress.h"
#include "worker/train/straggler_watch.h"

namespace starring {

// One worker's share of the machine in the measured steps.
struct WorkerUse {
  double compute_ms = 0;   // mean per step, forward and backward
  double cpu_percent = 0;  // 100 is one core
};

struct TrainResult {
  std::vector<EpochSummary> epochs;
  int64_t steps = 0;                      // taken by this process
  int64_t next_step = 0;                  // the first step of a resumed run
  int64_t resumed_from_step = 0;          // by this process; 0: it has not resumed
  std::vector<std::string> resume_notes;  // what a person must know of that
  bool stopped_early = false;
  bool checkpoint_saved = false;  // of next_step; only rank 0 knows
  StepSummary step_summary;
  ExchangeCounters exchange;
  std::string parameter_sha256;
  int64_t total_steps = 0;  // of the whole run
  int64_t steps_per_epoch = 0;
  int64_t bucket_bytes = 0;                 // as rounded; of the last step
  std::vector<TriedBuckets> tried_buckets;  // by --bucket_bytes=auto in this run; empty: nothing was tried to the end
  std::vector<WorkerUse> workers;           // by rank
  std::vector<StragglerRecord> stragglers;  // in the order in which they were found
  std::vector<StepLoss> losses;             // with WorkerOptions::record_losses
  bool segment_over = false;                // of an elastic run: stopped at a snapshot, for the next generation
  int64_t generation = 0;                   // of an elastic run: the last one's number
  absl::Status reported;                    // NotWrittenError of the last checkpoint, else TrainOptions::report's
};

// A generation, as the trainer sees it: it trains the steps from first_step on, to the end of the run or to the
// snapshot at which it is told to stop.
struct Segment {
  int64_t number = 1;
  int64_t first_step = 0;
  bool from_snapshot = false;
  bool ends_run = false;  // the run was asked to stop: train no step, save, and end
  int64_t snapshot_every = 1;
  std::vector<int> leaf_owners;
  std::function<bool()> stop;  // at the next snapshot
  // A step is over, and has taken so long, of which this worker has computed so long.
  std::function<void(int64_t next_step, double step_seconds, double compute_seconds)> on_step;
  // A micro-batch, or a batch of an evaluation, is done; or rank 0 has waited for the disk, and goes on doing so.
  std::function<void()> on_leaf;
  std::function<bool()> is_over;  // the generation was cut short; any thread
  // The loss of a step, which must be what it was if the step was computed before.
  std::function<absl::Status(int64_t step, double loss)> check_loss;
};

// Samples that are evaluated at once: per rank, or with --micro_batches by whoever does.
inline constexpr int64_t kEvaluationBatch = 256;

class CheckpointWriter;

struct TrainOptions {
  const WorkerOptions* worker = nullptr;  // this and the next six outlive the call
  const TrainAndTest* data = nullptr;
  Network* network = nullptr;
  GradientExchange* exchange = nullptr;
  const BucketMap* buckets = nullptr;  // of the first step, unless WorkerOptions::TriesBucketSizes
  TrainingStep* step = nullptr;
  CheckpointWriter* checkpoint_writer = nullptr;
  Progress::Style progress = Progress::Style::kNone;
  std::function<bool()> stop_requested;  // called once a step
  // Called with the result when all that the ranks do together is done, and before they part: what it writes is there
  // before anybody may hold the run to be over. An error of it ends no training (TrainResult::reported).
  std::function<absl::Status(const TrainResult&)> report;
  Facts facts;          // DecidingFacts
  Facts machine_facts;  // of this machine; other ranks may have others, and a run that resumes says so
  // Facts about this rank's device that must be the same on all ranks, for JobSpec::agreed_flags. Called after every
  // shape that any rank will meet has been planned for. Null: there are none, and no shape is planned in advance.
  std::function<absl::StatusOr<Facts>()> device_facts;
  std::vector<RunObserver*> observers;
  Trace* trace = nullptr;                      // null without a trace
  TraceTrack* track = nullptr;                 // the calling thread's track of that trace
  ProgressState* state = nullptr;              // told what the calling thread is doing, for stall reports; may be null
  const Segment* segment = nullptr;            // of an elastic run; outlives the call
  std::optional<Normalization> normalization;  // if it is known already; otherwise the ranks measure it together
};

// Trains to the end, or to the step at which the ranks agree to stop. After an error, the other ranks have been told
// (GradientExchange::Abort).
absl::StatusOr<TrainResult> Train(const TrainOptions& options);

}  // namespace starring

#endif  // STARRING_WORKER_TRAIN_TRAINER_H_
