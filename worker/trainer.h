// The training loop: one per worker, the same for every exchange.
//
//   for each step:  batch -> forward (before a layer: Await its buckets of the step before)
//                         -> backward (behind a layer: Submit the buckets that are complete)
//   for each epoch: Await everything, test accuracy over all ranks, checkpoint by rank 0
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_TRAINER_H_
#define STARRING_WORKER_TRAINER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/bucket_map.h"
#include "common/progress_state.h"
#include "common/trace.h"
#include "worker/data/dataset.h"
#include "worker/exchange/gradient_exchange.h"
#include "worker/model/network.h"
#include "worker/report/progress.h"
#include "worker/report/run_observer.h"
#include "worker/step/step_timer.h"
#include "worker/step/training_step.h"
#include "worker/straggler_watch.h"
#include "worker/worker_options.h"

namespace starring {

// What one worker did in the measured steps.
struct WorkerUse {
  double compute_ms = 0;   // mean per step, forward and backward
  double cpu_percent = 0;  // 100 is one core
};

struct StepLoss {
  int64_t step = 0;
  double seconds = 0;  // of training at its end, evaluation left out
  double loss = 0;     // mean over the global batch
};

struct TrainResult {
  std::vector<EpochSummary> epochs;
  int64_t steps = 0;      // taken by this process
  int64_t next_step = 0;  // where a resumed run would go on
  bool stopped_early = false;
  bool checkpoint_saved = false;  // of next_step; rank 0 knows
  StepSummary step_summary;
  ExchangeCounters exchange;
  std::string parameter_sha256;
  int64_t total_steps = 0;  // of the whole run
  int64_t steps_per_epoch = 0;
  int64_t bucket_bytes = 0;                 // as rounded
  std::vector<WorkerUse> workers;           // by rank
  std::vector<StragglerRecord> stragglers;  // in the order in which they were found
  std::vector<StepLoss> losses;             // with WorkerOptions::record_losses
};

// Samples that a rank evaluates at once.
inline constexpr int64_t kEvaluationBatch = 256;

class Trainer {
 public:
  struct Options {
    const WorkerOptions* worker = nullptr;  // all of these outlive the trainer
    const TrainAndTest* data = nullptr;
    Network* network = nullptr;
    GradientExchange* exchange = nullptr;
    const BucketMap* buckets = nullptr;
    TrainingStep* step = nullptr;
    Progress::Style progress = Progress::Style::kNone;
    std::function<bool()> stop_requested;  // asked once a step
    // What all ranks' devices must have alike, for JobSpec::agreed_flags: asked when every shape that any rank will
    // meet was planned for. Null: nothing, and then no shape is planned for ahead.
    std::function<std::vector<std::pair<std::string, std::string>>()> device_facts;
    std::vector<RunObserver*> observers;
    Trace* trace = nullptr;          // null: there is none
    TraceTrack* track = nullptr;     // of it, of the thread that calls Run
    ProgressState* state = nullptr;  // is told where that thread is; null: nobody asks
  };
  static std::unique_ptr<Trainer> Create(const Options& options);
  virtual ~Trainer() = default;

  // Trains to the end, or to the step at which the ranks agree to stop. On an error the peers have been told (Abort).
  virtual absl::StatusOr<TrainResult> Run() = 0;
};

}  // namespace starring

#endif  // STARRING_WORKER_TRAINER_H_
