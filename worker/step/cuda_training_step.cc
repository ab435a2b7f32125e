#include "worker/step/cuda_training_step.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/status.h"
#include "worker/step/cuda_batch_slots.h"
#include "worker/step/cuda_bucket_transfers.h"
#include "worker/step/cuda_input.h"
#include "worker/step/cuda_local_optimizer.h"
#include "worker/step/gpu_stamps.h"

namespace starring {
namespace {

using Slot = CudaBatchSlots::Slot;

struct Segment {
  ElementRange reads;  // parameters that no segment before it read
  std::unique_ptr<CudaGraph> graph;
};

// A step on one slot.
struct CapturedStep {
  // Shared with the network, which may drop them before the graphs that use them end.
  std::shared_ptr<const void> operations;
  std::vector<Segment> segments;  // empty: not captured yet
};

// All captured steps of one batch size.
struct Recording {
  int64_t batch = 0;
  std::vector<CapturedStep> steps;  // by slot
};

CudaInput::Options InputOf(const CudaTrainingStepOptions& options) {
  return {.device = options.device,
          .data = options.data,
          .data_on_gpu = options.data_on_gpu,
          .element = options.element,
          .augment = options.augment,
          .seed = options.seed,
          .batch_max = options.batch_max,
          .evaluation_batch_max = options.evaluation_batch_max};
}

CudaBatchSlots::Options SlotsOf(const CudaTrainingStepOptions& options) {
  // With the data set on the GPU a slot holds samples' numbers, and neither targets nor values.
  constexpr int64_t kSampleNumberBytes = sizeof(uint32_t);
  return {.device = options.device,
          .count = options.batch_slots,
          .batch_max = options.batch_max,
          .target_bytes = options.data_on_gpu ? kSampleNumberBytes : options.data->train.batch_target_bytes(),
          .image_bytes = options.data_on_gpu ? 0 : options.data->train.image_bytes()};
}

class CudaTrainingStep final : public TrainingStep {
 public:
  CudaTrainingStep(const TrainingStepParts& parts, const CudaTrainingStepOptions& options)
      : options_(options),
        device_(*options.device),
        network_(*parts.network),
        exchange_(*parts.exchange),
        buckets_(*parts.buckets),
        trace_(parts.trace) {}
  ~CudaTrainingStep() override {
    device_.BindStepValues(nullptr);
    device_.BindStepResult(nullptr);
    (void)device_.Synchronize();  // graphs and buffers are freed next; an error has no caller to go to
  }

  absl::Status Allocate(const TrainingStepParts& parts);

  Loader::Format batch_format() const override { return input_->format(); }
  BatchMemory* batch_memory() override { return slots_.get(); }
  std::string transfer() const override { return transfers_->name(); }
  std::span<float> initial_parameters() override { return transfers_->initial_parameters(); }
  absl::Status StartOptimizer(const JobSpec& job) override {
    return optimizer_ == nullptr ? absl::OkStatus() : optimizer_->Start(job);
  }
  absl::Status Begin(const Plan& plan) override;
  absl::Status Run(int64_t step, Loader* batches, std::vector<FinishedStep>* finished) override;
  absl::Status Settle(std::vector<FinishedStep>* finished) override;
  std::span<const float> parameters() const override { return transfers_->host_parameters(); }
  absl::Status GatherOptimizerState(std::span<const std::span<float>> state) override {
    return optimizer_ == nullptr ? exchange_.GatherOptimizerState(state) : optimizer_->CopyStateOut(state);
  }
  absl::StatusOr<LossResult> Evaluate(const Batch& batch) override;
  bool host_awaits_exchange() const override { return optimizer_ != nullptr || !transfers_->works_in_stream(); }
  std::optional<StepSummary> gpu_exposed() const override {
    if (stamps_ == nullptr) return std::nullopt;
    const StepSummary exposed = stamps_->exposed();
    return exposed.steps_measured == 0 ? std::nullopt : std::optional(exposed);
  }

 private:
  int64_t element_count() const { return network_.layout().element_count(); }

  absl::Status Feed(int64_t step, Loader* batches, Slot& slot);
  absl::Status Launch(Slot& slot);
  absl::Status RunOneByOne(Slot& slot);
  absl::Status AwaitEarlier(int64_t step);
  absl::StatusOr<CapturedStep> Capture(Slot& slot);
  absl::StatusOr<std::vector<Segment>> CaptureSegments(Slot& slot);
  absl::Status Backward(const Network::TrainStep& work, Slot& slot);
  absl::Status Finish(Slot& slot, std::vector<FinishedStep>* finished);

  Network::TrainStep TakeInput(Slot& slot);
  void Bind(Slot* slot);
  bool ReadsNew(int layer, std::vector<bool>* is_read) const;
  Recording* RecordingOf(int64_t batch);

  const CudaTrainingStepOptions options_;
  CudaDevice& device_;
  Network& network_;
  GradientExchange& exchange_;
  const BucketMap& buckets_;
  StepTimer* timer_ = nullptr;
  int64_t end_step_ = 0;
  int64_t last_step_ = 0;  // that was launched

  std::unique_ptr<CudaBatchSlots> slots_;
  std::unique_ptr<CudaLocalOptimizer> optimizer_;  // null: the exchange applies the optimizer
  std::unique_ptr<CudaBucketTransfers> transfers_;
  std::unique_ptr<CudaInput> input_;
  Trace* const trace_;
  std::unique_ptr<GpuStamps> stamps_;                   // null: there is no other worker
  std::vector<std::unique_ptr<Recording>> recordings_;  // destroyed first: its graphs refer to the members above
};

absl::Status CudaTrainingStep::Allocate(const TrainingStepParts& parts) {
  if (options_.optimizer.has_value()) {
    ASSIGN_OR_RETURN(optimizer_, CudaLocalOptimizer::Create(&device_, *options_.optimizer, element_count()));
  }
  // transfers_ keeps a pointer to the optimizer, so the optimizer is made first and, as the earlier member, ends last.
  ASSIGN_OR_RETURN(transfers_, CudaBucketTransfers::Create(parts, &device_, optimizer_.get()));
  ASSIGN_OR_RETURN(input_, CudaInput::Create(InputOf(options_)));
  ASSIGN_OR_RETURN(slots_, CudaBatchSlots::Create(SlotsOf(options_)));
  if (optimizer_ == nullptr && parts.world_size > 1) {
    // Forward is cut where a bucket is read first, so there are at most as many segments as buckets.
    ASSIGN_OR_RETURN(stamps_, GpuStamps::Create(&device_, slots_->count(), buckets_.bucket_count()));
  }
  return absl::OkStatus();
}

absl::Status CudaTrainingStep::Begin(const Plan& plan) {
  timer_ = plan.timer;
  end_step_ = plan.end_step;
  RETURN_IF_ERROR(transfers_->Begin(plan.timer));
  if (stamps_ != nullptr) RETURN_IF_ERROR(stamps_->Begin(plan.timer, AddTrack(trace_, {.name = "GPU"})));
  // A captured step has the flags of its slot.
  CHECK(exchange_.streams() == nullptr || slots_->count() == StreamExchange::kSlots);
  return input_->Begin(plan.normalization);
}

absl::Status CudaTrainingStep::Run(int64_t step, Loader* batches, std::vector<FinishedStep>* finished) {
  Slot& slot = slots_->of(step);
  Slot& next = slots_->of(step + 1);
  // This happens before the first step only: every other step finds the batch that the step before it has fed.
  if (!slot.is_full()) {
    RETURN_IF_ERROR(Finish(slot, finished));
    RETURN_IF_ERROR(Feed(step, batches, slot));
  }
  CHECK_EQ(slot.plan().step, step);
  timer_->Enter(StepPart::kForward);
  last_step_ = step;
  RETURN_IF_ERROR(slot.BeginStep(device_.stream()));
  RETURN_IF_ERROR(Launch(slot));
  RETURN_IF_ERROR(slot.EndStep(device_.stream()));

  // While the GPU is busy with this step, the next one's batch goes where the oldest step's was.
  RETURN_IF_ERROR(Finish(next, finished));
  if (step + 1 < end_step_) RETURN_IF_ERROR(Feed(step + 1, batches, next));
  // With one worker nothing waits for this step: the next one is enqueued after it. So it is where the GPU waits for
  // the others.
  if (transfers_->works_in_stream()) return absl::OkStatus();
  RETURN_IF_ERROR(transfers_->SubmitAll(step));
  // With several, the step has written its last gradient when SubmitAll returns; only its result is still on the way.
  return Finish(slot, finished);
}

// REQUIRES: no step runs on the slot.
absl::Status CudaTrainingStep::Feed(int64_t step, Loader* batches, Slot& slot) {
  timer_->Enter(StepPart::kHostToDevice);
  // This comes before Next, which gives the memory of the last batch back to the loader: the GPU may still be copying
  // from it.
  RETURN_IF_ERROR(slots_->AwaitCopy());
  timer_->Enter(StepPart::kDataWait);
  ASSIGN_OR_RETURN(const Batch* batch, NextTraced(step, batches, *timer_));
  timer_->Enter(StepPart::kHostToDevice);
  const TraceSpan span(timer_->track(), "H2D", {.step = step});
  return slots_->Fill(slot, *batch, optimizer_ == nullptr ? transfers_->ScalarsOf(step) : optimizer_->ScalarsOf(step));
}

// Enqueues the whole step of the slot.
absl::Status CudaTrainingStep::Launch(Slot& slot) {
  const auto batch = std::ssize(slot.plan().samples);
  // A rank has an empty batch at the end of an epoch at most. Its step only writes zeros and is not worth a graph.
  if (batch == 0 || options_.graphs == CudaGraphs::kNone) return RunOneByOne(slot);
  Recording* const recording = RecordingOf(batch);
  if (recording == nullptr) {
    recordings_.push_back(std::make_unique<Recording>(
        Recording{.batch = batch, .steps = std::vector<CapturedStep>(static_cast<size_t>(slots_->count()))}));
    return RunOneByOne(slot);
  }
  CapturedStep& captured = recording->steps[static_cast<size_t>(slots_->IndexOf(slot.plan().step))];
  if (captured.segments.empty()) {
    ASSIGN_OR_RETURN(captured, Capture(slot));
  }
  for (const Segment& segment : captured.segments) {
    // The wait is here, between two launches, and not in the graph: only the host knows when the exchange has made a
    // bucket. While it waits here, the GPU runs the segments before.
    RETURN_IF_ERROR(transfers_->Bring(segment.reads));
    const TraceSpan span(timer_->track(), "launch", {.step = slot.plan().step});
    RETURN_IF_ERROR(segment.graph->Launch());
  }
  if (stamps_ != nullptr) {
    stamps_->Ran(slots_->IndexOf(slot.plan().step), static_cast<int>(captured.segments.size()));
  }
  return absl::OkStatus();
}

// Each round has a wait of its own, whose deadline, stall report and count are those of this round: a wait for `step`
// alone would be one for all of them. Results and findings are left to Finish.
absl::Status CudaTrainingStep::AwaitEarlier(int64_t step) {
  if (host_awaits_exchange()) return absl::OkStatus();
  ProgressState* const progress = timer_->progress();
  const StepPart part = timer_->Enter(StepPart::kBackward);
  for (int64_t earlier = std::max<int64_t>(0, step - slots_->count() + 1); earlier < step; ++earlier) {
    const Slot& slot = slots_->of(earlier);
    if (!slot.runs()) continue;
    CHECK_EQ(slot.plan().step, earlier);
    if (progress != nullptr) progress->set_step(earlier);
    RETURN_IF_ERROR(transfers_->AwaitEnd(earlier, slot.done()));
  }
  if (progress != nullptr) progress->set_step(step);
  timer_->Enter(part);
  return absl::OkStatus();
}

absl::Status CudaTrainingStep::RunOneByOne(Slot& slot) {
  // First of all: the first step of a batch size allocates, and such a call may wait for the whole GPU.
  RETURN_IF_ERROR(AwaitEarlier(slot.plan().step));
  Bind(&slot);
  // The same segments as in a graph, whose first one takes the batch when the parameters have come that it reads.
  std::vector<bool> is_read(static_cast<size_t>(buckets_.bucket_count()), false);
  int first_layer = 0;
  while (first_layer < network_.layer_count() && !ReadsNew(first_layer, &is_read)) ++first_layer;
  if (first_layer < network_.layer_count()) RETURN_IF_ERROR(transfers_->Bring(network_.LayerRange(first_layer)));
  const int slot_number = slots_->IndexOf(slot.plan().step);
  if (stamps_ != nullptr) {
    stamps_->BeginStep(slot_number);
    stamps_->BeginSegment();
  }
  // The step reads the loss scale, its number and the learning rate from the slot, as a graph does. So a run without
  // graphs has the same bits, and its first steps the same as the later ones.
  const Network::TrainStep work = TakeInput(slot);
  RETURN_IF_ERROR(network_.Forward(work, [&](int layer) -> absl::Status {
    if (transfers_->works_in_stream() || !ReadsNew(layer, &is_read)) return absl::OkStatus();
    if (stamps_ != nullptr) stamps_->EndSegment();
    RETURN_IF_ERROR(transfers_->Bring(network_.LayerRange(layer)));
    if (stamps_ != nullptr) stamps_->BeginSegment();
    return absl::OkStatus();
  }));
  // Backward reads parameters again and overwrites gradients of every bucket, also of those that forward did not read.
  RETURN_IF_ERROR(transfers_->Bring({0, element_count()}));
  RETURN_IF_ERROR(Backward(work, slot));
  if (stamps_ != nullptr) stamps_->Ran(slot_number, stamps_->segment_count());
  Bind(nullptr);
  // Returns the first error of all calls above.
  return transfers_->AwaitDevice(slot.plan().step);
}

absl::StatusOr<CapturedStep> CudaTrainingStep::Capture(Slot& slot) {
  Bind(&slot);
  // The network keeps operations for few batch sizes: others may have replaced those of this size since its first step.
  RETURN_IF_ERROR(network_.PlanTraining(std::ssize(slot.plan().samples)));
  absl::StatusOr<std::vector<Segment>> segments = CaptureSegments(slot);
  Bind(nullptr);
  if (!segments.ok()) {
    // A stream that still captures runs nothing: who asks whether it has come to its end would hear that it has.
    transfers_->AbandonBackward();
    (void)device_.EndCapture();
    return segments.status();
  }
  return CapturedStep{.operations = network_.operations(), .segments = *std::move(segments)};
}

absl::StatusOr<std::vector<Segment>> CudaTrainingStep::CaptureSegments(Slot& slot) {
  std::vector<Segment> segments(1);
  // By bucket: whether a segment so far waits for it.
  std::vector<bool> is_read(static_cast<size_t>(buckets_.bucket_count()), false);
  const auto end_segment = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(segments.back().graph, device_.EndCapture());
    return absl::OkStatus();
  };
  // Cuts before a layer that reads a bucket which no segment has read. The first such layer starts no new segment: the
  // first segment waits for its buckets before it is launched.
  const auto before_layer = [&](int layer) -> absl::Status {
    const ElementRange reads = network_.LayerRange(layer);
    if (transfers_->works_in_stream() || !ReadsNew(layer, &is_read)) return absl::OkStatus();
    if (segments.back().reads.size() > 0) {
      if (stamps_ != nullptr) stamps_->EndSegment();
      RETURN_IF_ERROR(end_segment());
      segments.emplace_back();
      RETURN_IF_ERROR(device_.BeginCapture());
      if (stamps_ != nullptr) stamps_->BeginSegment();
    }
    segments.back().reads = reads;
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(device_.BeginCapture());
  if (stamps_ != nullptr) {
    stamps_->BeginStep(slots_->IndexOf(slot.plan().step));
    stamps_->BeginSegment();
  }
  const Network::TrainStep work = TakeInput(slot);
  RETURN_IF_ERROR(network_.Forward(work, before_layer));
  RETURN_IF_ERROR(Backward(work, slot));
  RETURN_IF_ERROR(end_segment());
  // Before backward every bucket must have been awaited, also a bucket that no layer reads.
  segments.back().reads = {0, element_count()};
  return segments;
}

// Enqueues backward, the downloads or the optimizer, and the copy of the step's result.
absl::Status CudaTrainingStep::Backward(const Network::TrainStep& work, Slot& slot) {
  RETURN_IF_ERROR(network_.Backward(work, [this](int layer) -> absl::Status {
    // Layers without parameters complete no bucket; their range is empty and says nothing about the vector.
    const ElementRange range = network_.LayerRange(layer);
    return range.size() == 0 ? absl::OkStatus() : transfers_->Complete(range.begin);
  }));
  if (stamps_ != nullptr) stamps_->EndSegment();
  RETURN_IF_ERROR(transfers_->FinishBackward());
  return device_.stream()->CopyToHost(slot.device_result(), slot.result(), sizeof(CudaStepResult));
}

// Waits for the step that runs on the slot, if one does.
absl::Status CudaTrainingStep::Finish(Slot& slot, std::vector<FinishedStep>* finished) {
  if (!slot.runs()) return absl::OkStatus();
  // A stall report must name the step that the GPU is at, not the one that was launched last.
  ProgressState* const progress = timer_->progress();
  if (progress != nullptr) progress->set_step(slot.plan().step);
  timer_->Enter(StepPart::kBackward);
  {
    const TraceSpan span(timer_->track(), "wait for the GPU", {.step = slot.plan().step});
    RETURN_IF_ERROR(transfers_->works_in_stream()
                        ? slot.Finish([&](CudaEvent* done) { return transfers_->AwaitStep(slot.plan().step, done); })
                        : slot.Finish());
  }
  if (progress != nullptr) progress->set_step(last_step_);
  const CudaStepResult& result = *slot.result();
  const BatchPlan& plan = slot.plan();
  if (stamps_ != nullptr) stamps_->Finish(slots_->IndexOf(plan.step), plan.step);
  // The element is set with one worker only, by the optimizer's kernel, which has made the update all the same: the
  // parameters on the GPU are spoilt. With several workers SubmitAll finds such a gradient before it leaves.
  if (result.non_finite_element >= 0) return transfers_->NonFinite(plan.step, result.non_finite_element);
  finished->push_back({.step = plan.step,
                       .global_count = plan.global_count,
                       .batch = std::ssize(plan.samples),
                       .loss = {.loss_sum = result.loss_sum, .correct = result.correct}});
  return absl::OkStatus();
}

absl::Status CudaTrainingStep::Settle(std::vector<FinishedStep>* finished) {
  // The oldest step, which has the slot after the last one's, comes first: if several steps have NaNs, the error must
  // name the first of them.
  for (int64_t step = last_step_ + 1; step <= last_step_ + slots_->count(); ++step) {
    RETURN_IF_ERROR(Finish(slots_->of(step), finished));
  }
  RETURN_IF_ERROR(transfers_->Settle());
  return stamps_ == nullptr ? absl::OkStatus() : stamps_->Settle();
}

absl::StatusOr<LossResult> CudaTrainingStep::Evaluate(const Batch& batch) {
  // No step is in flight (Settle), and none is bound: the loss goes to network_.Result() and not to a slot.
  RETURN_IF_ERROR(network_.Evaluate(input_->Evaluation(batch), transfers_->parameters()));
  const LossResult loss = network_.Result();
  RETURN_IF_ERROR(device_.Synchronize());
  return loss;
}

// Enqueues the input of the slot's step.
Network::TrainStep CudaTrainingStep::TakeInput(Slot& slot) {
  return {.input = input_->Training(slot),
          .step = slot.plan().step,
          .parameters = transfers_->parameters(),
          .gradients = transfers_->gradients(),
          // With one worker the step before has updated all of them.
          .arrive = optimizer_ == nullptr ? Network::TrainStep::Parameters::kByLayer
                                          : Network::TrainStep::Parameters::kBefore};
}

void CudaTrainingStep::Bind(Slot* slot) {
  // A binding is part of what a capture keeps, so each slot has graphs of its own, and none may be bound while another
  // slot's step or an evaluation is enqueued.
  if (slot != nullptr) transfers_->BeginStep(slot->plan().step, slot->values());
  device_.BindStepValues(slot == nullptr ? nullptr : slot->values());
  device_.BindStepResult(slot == nullptr ? nullptr : slot->device_result());
}

// Whether the layer reads a bucket that no layer before it reads. Notes the buckets that it reads.
bool CudaTrainingStep::ReadsNew(int layer, std::vector<bool>* is_read) const {
  const ElementRange reads = network_.LayerRange(layer);
  if (reads.size() == 0) return false;
  bool reads_new = false;
  for (int b = buckets_.BucketOf(reads.end - 1); b <= buckets_.BucketOf(reads.begin); ++b) {
    reads_new = reads_new || !(*is_read)[static_cast<size_t>(b)];
    (*is_read)[static_cast<size_t>(b)] = true;
  }
  return reads_new;
}

// Null if none of this batch size was run.
Recording* CudaTrainingStep::RecordingOf(int64_t batch) {
  for (const auto& recording : recordings_) {
    if (recording->batch == batch) return recording.get();
  }
  return nullptr;
}

}  // namespace

int64_t CudaParametersBytes(int64_t element_count) { return 2 * element_count * kFloatBytes; }

int64_t CudaBatchesBytes(const CudaTrainingStepOptions& options) {
  return CudaBatchSlots::DeviceBytes(SlotsOf(options)) + CudaInput::BatchBytes(InputOf(options));
}

int64_t CudaDataBytes(const CudaTrainingStepOptions& options) { return CudaInput::DataBytes(InputOf(options)); }

absl::StatusOr<std::unique_ptr<TrainingStep>> CreateCudaTrainingStep(const TrainingStepParts& parts,
                                                                     const CudaTrainingStepOptions& options) {
  auto step = std::make_unique<CudaTrainingStep>(parts, options);
  RETURN_IF_ERROR(step->Allocate(parts));
  return step;
}

}  // namespace starring
