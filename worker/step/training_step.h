// One step of training on one kind of device, and the rest of training that depends on where the tensors are.
//
// The trainer is responsible for epochs, evaluation over ranks and checkpoints. A step takes the next batch, runs
// forward, loss and backward, awaits the buckets that forward reads and submits those that backward completes.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_STEP_TRAINING_STEP_H_
#define STARRING_WORKER_STEP_TRAINING_STEP_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/check.h"
#include "common/job/bucket_map.h"
#include "common/job/job_spec.h"
#include "common/metrics/trace.h"
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
  int64_t batch = 0;         // those that `loss` is summed over: this rank's, or all with --micro_batches; may be 0
  LossResult loss;

  // Means over these samples; 0 without samples.
  double mean_loss() const { return loss.loss_sum / static_cast<double>(std::max<int64_t>(1, batch)); }
  double accuracy() const {
    return static_cast<double>(loss.correct) / static_cast<double>(std::max<int64_t>(1, batch));
  }
};

class TrainingStep {
 public:
  virtual ~TrainingStep() = default;

  // The format in which the loaders for Run and Evaluate must deliver batches.
  virtual Loader::Format batch_format() const = 0;
  // Where Run's loader must put its batches; null: in memory of its own. Evaluate's loader always allocates its own.
  virtual BatchMemory* batch_memory() { return nullptr; }
  // How gradients and parameters move between device and exchange, for the run record; empty if they need not move.
  virtual std::string transfer() const { return ""; }

  // The exposed exchange of each measured step by the clock of this rank's GPU (gpu_stamps.h); none on the CPU and with
  // one worker. After Settle.
  virtual std::optional<StepSummary> gpu_exposed() const { return std::nullopt; }

  // Whether the host's thread waits for the exchange, so that the timer's forward and backward are this rank's work
  // alone. False: the GPU waits for other ranks, and the host for the GPU. After Begin.
  virtual bool host_awaits_exchange() const { return true; }

  // Host memory as long as the parameter vector, for GradientExchange::Start. Valid until Begin.
  virtual std::span<float> initial_parameters() = 0;

  // Called after the exchange has started with `job`. A step that applies the optimizer itself takes the schedule from
  // it, and the state that a checkpoint brought, and has copied both on return.
  virtual absl::Status StartOptimizer(const JobSpec&) { return absl::OkStatus(); }

  // Called after the exchange has started with the parameters of the first step, and before Run and Evaluate.
  struct Plan {
    Normalization normalization;
    StepTimer* timer = nullptr;  // outlives the step; BeginStep has been called whenever Run is
    int64_t end_step = 0;        // one past the last
  };
  virtual absl::Status Begin(const Plan& plan) = 0;

  // Runs `step` on the next batch of `batches`, or the next batch for each leaf of the worker's share. May take the one
  // after as well. Appends the steps that have finished by now: this one, or earlier ones.
  virtual absl::Status Run(int64_t step, Loader* batches, std::vector<FinishedStep>* finished) = 0;

  // Waits for everything in flight. Afterwards every step that was run has finished, and the device and parameters()
  // have the parameters of the next step.
  virtual absl::Status Settle(std::vector<FinishedStep>* finished) = 0;

  // The exchange has other buckets now (GradientExchange::UseBuckets). REQUIRES: a step on the CPU; before the first
  // Run, or after Settle.
  virtual void UseBuckets(const BucketMap&) { CHECK(false) << "this step keeps to its buckets"; }

  // In host memory. Valid after Begin and after Settle, until the next Run.
  virtual std::span<const float> parameters() const = 0;

  // GradientExchange::GatherOptimizerState, which answers unless the step applies the optimizer itself. After Begin or
  // Settle.
  virtual absl::Status GatherOptimizerState(std::span<const std::span<float>> state) = 0;

  // The loss of a batch without augmentation. REQUIRES: Begin or Settle was the last call but Evaluate; the batch has
  // samples.
  virtual absl::StatusOr<LossResult> Evaluate(const Batch& batch) = 0;
};

// batches->Next(), as a span of the timer's track.
inline absl::StatusOr<const Batch*> NextTraced(int64_t step, Loader* batches, const StepTimer& timer) {
  const TraceSpan span(timer.track(), "data wait", {.step = step});
  return batches->Next();
}

// The parts that every kind of step needs; all outlive the step.
struct TrainingStepParts {
  Network* network = nullptr;
  GradientExchange* exchange = nullptr;
  const BucketMap* buckets = nullptr;
  int rank = 0;
  int world_size = 1;
  // Above 0: the worker computes the leaves of its share (common/job/leaf_shares.h), and the batches of Run are theirs,
  // in this order. 0: there is one batch a step, of this worker's part of the samples.
  int micro_batches = 0;
  std::vector<int> leaf_owners;   // by leaf the rank that computes it; empty: dealt evenly
  std::function<void()> on_leaf;  // called when a leaf is computed; may be null
  // The part that time in the exchange belongs to. A single worker waits for no other, so there it is the optimizer's.
  StepPart exchange_part = StepPart::kExposedExchange;
  Trace* trace = nullptr;  // gets the row of a GPU; may be null
};

// The step on a device whose memory is the host's: gradients and parameters are where the exchange has them, and are
// not copied. ResourceExhausted with the number of bytes. `device` is the network's, and outlives the step.
absl::StatusOr<std::unique_ptr<TrainingStep>> CreateCpuTrainingStep(const TrainingStepParts& parts, Device* device);

}  // namespace starring

#endif  // STARRING_WORKER_STEP_TRAINING_STEP_H_
