// One step of training on one kind of device, and what else of training depends on where the tensors lie.
//
// The trainer keeps epochs, evaluation over ranks and checkpoints; a step takes the next batch, runs forward, loss and
// backward, awaits the buckets that forward reads and submits those that backward completes.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_STEP_TRAINING_STEP_H_
#define STARRING_WORKER_STEP_TRAINING_STEP_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/bucket_map.h"
#include "common/job_spec.h"
#include "common/trace.h"
#include "kernels/device.h"
#include "worker/data/loader.h"
#include "worker/data/normalization.h"
#include "worker/exchange/gradient_exchange.h"
#include "worker/model/network.h"
#include "worker/step/step_timer.h"

namespace starring {

// A step whose loss is known.
struct FinishedStep {
  int64_t step = 0;
  int64_t global_count = 0;  // samples in the global batch
  int64_t batch = 0;         // of them this rank's
  LossResult loss;           // of this rank's
};

class TrainingStep {
 public:
  virtual ~TrainingStep() = default;

  // What the loaders of Run and Evaluate have to bring.
  virtual Loader::Format batch_format() const = 0;
  // Where the loader of Run keeps its batches; null: in memory of its own, as that of Evaluate does.
  virtual BatchMemory* batch_memory() { return nullptr; }
  // How gradients and parameters get between device and exchange, for the run record; empty where they are in place.
  virtual std::string transfer() const { return ""; }

  // Host memory as long as the parameter vector, for GradientExchange::Start. Valid until Begin.
  virtual std::span<float> initial_parameters() = 0;

  // The exchange has started with `job`. A step that applies the optimizer itself takes the schedule and the state that
  // a checkpoint brought, and has copied them on return.
  virtual absl::Status StartOptimizer(const JobSpec&) { return absl::OkStatus(); }

  // The exchange has started, its parameters are the first step's. Before Run and Evaluate.
  struct Plan {
    Normalization normalization;
    StepTimer* timer = nullptr;  // outlives the step; of a step that was begun
    int64_t end_step = 0;        // one past the last
  };
  virtual absl::Status Begin(const Plan& plan) = 0;

  // Runs `step` on the next batch of `batches`; may already take the one after it. Appends the steps that are finished
  // by now: this one, or those before.
  virtual absl::Status Run(int64_t step, Loader* batches, std::vector<FinishedStep>* finished) = 0;

  // Waits for what is in flight: then every step that was run has finished, and device and parameters() have what
  // the next step reads.
  virtual absl::Status Settle(std::vector<FinishedStep>* finished) = 0;

  // On the host. Valid after Begin and after Settle, until the next Run.
  virtual std::span<const float> parameters() const = 0;

  // As GradientExchange::GatherOptimizerState, which answers unless the step applies the optimizer itself. After Begin
  // or Settle.
  virtual absl::Status GatherOptimizerState(std::span<const std::span<float>> state) = 0;

  // Of a batch without augmentation, with samples. After Begin or Settle.
  virtual absl::StatusOr<LossResult> Evaluate(const Batch& batch) = 0;
};

// batches->Next(), as a span of the timer's track.
inline absl::StatusOr<const Batch*> NextTraced(int64_t step, Loader* batches, const StepTimer& timer) {
  const TraceSpan span(timer.track(), "data wait", {.step = step});
  return batches->Next();
}

// What every kind needs; all outlive the step.
struct TrainingStepParts {
  Network* network = nullptr;
  GradientExchange* exchange = nullptr;
  const BucketMap* buckets = nullptr;
  int rank = 0;
  // What the time in the exchange counts as: with one worker there is nobody to wait for, it is the optimizer's.
  StepPart exchange_part = StepPart::kExposedExchange;
};

}  // namespace starring

#endif  // STARRING_WORKER_STEP_TRAINING_STEP_H_
