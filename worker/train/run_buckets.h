// The buckets of a run from step to step: those of --bucket_bytes, or with auto those that are tried and then chosen
// (bucket_trial.h). Tells exchange, training step and checkpointer when the buckets change.
//
// Thread safety: one thread, the trainer's.
#ifndef STARRING_WORKER_TRAIN_RUN_BUCKETS_H_
#define STARRING_WORKER_TRAIN_RUN_BUCKETS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/job/bucket_map.h"
#include "common/job/job_spec.h"
#include "worker/checkpoint/checkpointer.h"
#include "worker/exchange/gradient_exchange.h"
#include "worker/options/worker_options.h"
#include "worker/step/training_step.h"
#include "worker/train/bucket_trial.h"

namespace starring {

class RunBuckets {
 public:
  struct Options {
    const WorkerOptions* worker = nullptr;  // all outlive the object
    const BucketMap* buckets = nullptr;     // by --bucket_bytes; with auto, the usual ones
    GradientExchange* exchange = nullptr;
    TrainingStep* step = nullptr;
  };
  explicit RunBuckets(const Options& options) : options_(options), current_(*options.buckets) {}

  // Decides which buckets the run begins with, and enters them into `job`: with auto those that the run which
  // `checkpointer` has restored had chosen, or the first to try. A run with too few steps for a trial has the usual
  // ones. Called before the exchange starts, after Checkpointer::Restore; `checkpointer` outlives the object.
  // Fails as BucketMap::Create.
  absl::Status Plan(int64_t step_count, Checkpointer* checkpointer, JobSpec* job);

  const BucketMap& current() const { return current_; }
  // Steps that a trial takes from the first one on; 0: there is no trial.
  int64_t trial_step_count() const { return trial_.has_value() ? trial_->step_count() : 0; }
  // True if the next step must leave no bucket in flight.
  bool MayChangeAfterNextStep() const { return trial_.has_value() && trial_->IsLastStepOfSize(); }

  // To be called after every step. The step has taken `time`, and `next_step` follows. Collective whenever
  // MayChangeAfterNextStep was true. Fails as the exchange does.
  absl::Status AfterStep(absl::Duration time, int64_t next_step);

  // The sizes that were tried, once one is chosen; empty without a trial.
  const std::vector<TriedBuckets>& tried() const { return tried_; }

 private:
  const Options options_;
  BucketMap current_;
  Checkpointer* checkpointer_ = nullptr;
  std::optional<BucketTrial> trial_;  // until it is over
  std::vector<TriedBuckets> tried_;
};

}  // namespace starring

#endif  // STARRING_WORKER_TRAIN_RUN_BUCKETS_H_
