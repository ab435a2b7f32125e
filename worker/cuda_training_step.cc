#include "worker/cuda_training_step.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status.h"
#include "worker/bucket_flights.h"
#include "worker/data/pixel_normalizer.h"

namespace starring {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);

constexpr int64_t RoundUp(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Bytes of a slot: one copy brings a whole batch. Every part begins on a 64-byte boundary.
struct SlotLayout {
  explicit SlotLayout(int64_t batch_max)
      : labels(kResult + RoundUp(sizeof(CudaStepResult))),
        pixels(labels + RoundUp(batch_max * static_cast<int64_t>(sizeof(int32_t)))) {}
  static constexpr int64_t kValues = 0;                                // CudaStepValues
  static constexpr int64_t kResult = RoundUp(sizeof(CudaStepValues));  // CudaStepResult, as it begins
  int64_t labels, pixels;
};

struct Segment {
  ElementRange reads;  // parameters that no segment before it read
  std::unique_ptr<CudaGraph> graph;
};

struct Slot {
  std::unique_ptr<PinnedBuffer> host;
  std::unique_ptr<DeviceBuffer> device;
  std::unique_ptr<PinnedBuffer> result;  // CudaStepResult, when the step is done
  std::unique_ptr<CudaEvent> fed;        // the batch is on the GPU
  std::unique_ptr<CudaEvent> done;       // the step that used it
  BatchPlan plan;
  bool is_full = false;  // holds a batch that no step was run on
  bool runs = false;     // a step was run on it and is not known to be finished
};

// Of one batch size.
struct Recording {
  int64_t batch = 0;
  std::array<std::vector<Segment>, 2> segments;  // by slot; empty: not captured yet
};

class CudaTrainingStep final : public TrainingStep {
 public:
  CudaTrainingStep(const TrainingStepParts& parts, const CudaTrainingStepOptions& options)
      : options_(options),
        device_(*options.device),
        network_(*parts.network),
        exchange_(*parts.exchange),
        buckets_(*parts.buckets),
        layout_(options.batch_max),
        flights_({.buckets = parts.buckets,
                  .layout = &parts.network->layout(),
                  .exchange = parts.exchange,
                  .rank = parts.rank,
                  .exchange_part = parts.exchange_part}) {}
  ~CudaTrainingStep() override {
    device_.BindStepValues(nullptr);
    device_.BindStepResult(nullptr);
    // Graphs and buffers end now. There is nobody left to tell an error.
    (void)device_.Synchronize();
    for (CudaStream* const stream : {feed_.get(), uploads_.get(), downloads_.get()}) {
      if (stream != nullptr) (void)stream->Synchronize();
    }
  }

  absl::Status Allocate();

  Loader::Format batch_format() const override { return Loader::Format::kPixels; }
  std::string transfer() const override { return local() ? "" : "host-staged"; }
  std::span<float> initial_parameters() override { return Floats(*own_parameters_); }
  absl::Status Begin(const Plan& plan) override;
  absl::Status Run(int64_t step, Loader* batches, std::vector<FinishedStep>* finished) override;
  absl::Status Settle(std::vector<FinishedStep>* finished) override;
  std::span<const float> parameters() const override {
    return own_parameters_ == nullptr ? exchange_.parameter_memory() : Floats(*own_parameters_);
  }
  absl::StatusOr<LossResult> Evaluate(const Batch& batch) override;

 private:
  bool local() const { return options_.local != nullptr; }
  int64_t element_count() const { return network_.layout().element_count(); }
  std::span<float> Floats(PinnedBuffer& buffer) const {
    return {static_cast<float*>(buffer.data()), static_cast<size_t>(element_count())};
  }
  std::span<float> Floats(DeviceBuffer& buffer) const {
    return {buffer.floats(), static_cast<size_t>(element_count())};
  }
  template <typename T>
  static T* At(Slot& slot, int64_t offset) {
    return reinterpret_cast<T*>(static_cast<std::byte*>(slot.device->data()) + offset);
  }

  absl::Status Feed(int64_t step, Loader* batches, Slot& slot);
  absl::Status Launch(Slot& slot);
  absl::Status RunOneByOne(Slot& slot);
  absl::StatusOr<std::vector<Segment>> Capture(Slot& slot);
  absl::Status Backward(const Network::TrainStep& work, Slot& slot);
  absl::Status BringParameters(ElementRange range);
  absl::Status SubmitAll(int64_t step);
  absl::Status Finish(Slot& slot, std::vector<FinishedStep>* finished);

  Network::TrainStep WorkOf(Slot& slot);
  void Normalize(const uint8_t* pixels, int64_t batch);
  void Bind(Slot* slot);
  Recording* RecordingOf(int64_t batch);

  const CudaTrainingStepOptions options_;
  CudaDevice& device_;
  Network& network_;
  GradientExchange& exchange_;
  const BucketMap& buckets_;
  const SlotLayout layout_;
  BucketFlights flights_;
  StepTimer* timer_ = nullptr;
  int64_t end_step_ = 0;

  std::unique_ptr<CudaStream> feed_, uploads_, downloads_;
  std::unique_ptr<CudaEvent> uploaded_;
  std::vector<std::unique_ptr<CudaEvent>> downloaded_;  // of each bucket
  std::unique_ptr<DeviceBuffer> parameters_, gradients_;
  std::unique_ptr<DeviceBuffer> images_;  // of the step or evaluation that runs
  std::unique_ptr<DeviceBuffer> evaluation_pixels_, evaluation_labels_;
  std::unique_ptr<DeviceBuffer> offset_, scale_;                        // PixelConstants
  std::unique_ptr<PinnedBuffer> own_parameters_, own_gradients_;        // null where the exchange's are used
  std::unique_ptr<PinnedBuffer> pinned_parameters_, pinned_gradients_;  // the exchange's, if they could be pinned
  std::span<float> host_gradients_;
  std::array<Slot, 2> slots_;
  std::vector<std::unique_ptr<Recording>> recordings_;  // last: its graphs refer to the rest
};

absl::Status CudaTrainingStep::Allocate() {
  const int64_t bytes = element_count() * kFloatBytes;
  ASSIGN_OR_RETURN(parameters_, device_.Allocate(bytes), "parameters");
  ASSIGN_OR_RETURN(gradients_, device_.Allocate(bytes), "gradients");
  ASSIGN_OR_RETURN(own_parameters_, device_.AllocatePinned(bytes), "parameters");
  std::fill_n(static_cast<float*>(own_parameters_->data()), element_count(), 0.0f);
  const int64_t images_max = std::max(options_.batch_max, options_.evaluation_batch_max);
  ASSIGN_OR_RETURN(images_, device_.Allocate(images_max * options_.image_values * kFloatBytes), "a batch of images");
  ASSIGN_OR_RETURN(evaluation_pixels_, device_.Allocate(options_.evaluation_batch_max * options_.image_values));
  ASSIGN_OR_RETURN(evaluation_labels_, device_.Allocate(options_.evaluation_batch_max * kFloatBytes));
  ASSIGN_OR_RETURN(offset_, device_.Allocate(options_.channels * kFloatBytes));
  ASSIGN_OR_RETURN(scale_, device_.Allocate(options_.channels * kFloatBytes));
  ASSIGN_OR_RETURN(feed_, device_.CreateStream());
  ASSIGN_OR_RETURN(uploads_, device_.CreateStream());
  ASSIGN_OR_RETURN(downloads_, device_.CreateStream());
  ASSIGN_OR_RETURN(uploaded_, device_.CreateEvent());
  for (int b = 0; b < buckets_.bucket_count(); ++b) {
    ASSIGN_OR_RETURN(downloaded_.emplace_back(), device_.CreateEvent());
  }
  const int64_t slot_bytes = layout_.pixels + options_.batch_max * options_.image_values;
  for (Slot& slot : slots_) {
    ASSIGN_OR_RETURN(slot.host, device_.AllocatePinned(slot_bytes), "a batch");
    ASSIGN_OR_RETURN(slot.device, device_.Allocate(slot_bytes), "a batch");
    ASSIGN_OR_RETURN(slot.result, device_.AllocatePinned(sizeof(CudaStepResult)));
    ASSIGN_OR_RETURN(slot.fed, device_.CreateEvent());
    ASSIGN_OR_RETURN(slot.done, device_.CreateEvent());
    std::memset(slot.host->data(), 0, static_cast<size_t>(slot_bytes));
  }
  return absl::OkStatus();
}

absl::Status CudaTrainingStep::Begin(const Plan& plan) {
  timer_ = plan.timer;
  end_step_ = plan.end_step;
  const int64_t bytes = element_count() * kFloatBytes;
  // Memory that cannot be pinned is copied by way of CUDA's own: for parameters slower, no more. Gradients are copied
  // inside a graph: they get memory of ours, and the exchange copies.
  if (const std::span<const float> memory = exchange_.parameter_memory(); !memory.empty()) {
    if (auto pinned = device_.Pin(const_cast<float*>(memory.data()), bytes); pinned.ok()) {
      pinned_parameters_ = *std::move(pinned);
    }
    own_parameters_.reset();
  }
  if (!local()) {
    if (const std::span<float> memory = exchange_.gradient_memory(); !memory.empty()) {
      if (auto pinned = device_.Pin(memory.data(), bytes); pinned.ok()) {
        pinned_gradients_ = *std::move(pinned);
        host_gradients_ = memory;
      }
    }
    if (host_gradients_.empty()) {
      ASSIGN_OR_RETURN(own_gradients_, device_.AllocatePinned(bytes), "gradients");
      host_gradients_ = Floats(*own_gradients_);
    }
  }
  device_.CopyToDevice(parameters().data(), parameters_->data(), bytes);
  const PixelConstants constants = PixelConstantsOf(plan.normalization);
  CHECK_EQ(std::ssize(constants.offset), options_.channels);
  device_.CopyToDevice(constants.offset.data(), offset_->data(), options_.channels * kFloatBytes);
  device_.CopyToDevice(constants.scale.data(), scale_->data(), options_.channels * kFloatBytes);
  return device_.Synchronize();  // `constants` ends here
}

absl::Status CudaTrainingStep::Run(int64_t step, Loader* batches, std::vector<FinishedStep>* finished) {
  Slot& slot = slots_[static_cast<size_t>(step % 2)];
  Slot& other = slots_[static_cast<size_t>((step + 1) % 2)];
  if (!slot.is_full) {
    RETURN_IF_ERROR(Finish(slot, finished));
    RETURN_IF_ERROR(Feed(step, batches, slot));
  }
  CHECK_EQ(slot.plan.step, step);
  timer_->Enter(StepPart::kForward);
  RETURN_IF_ERROR(device_.stream()->Wait(slot.fed.get()));
  RETURN_IF_ERROR(Launch(slot));
  RETURN_IF_ERROR(device_.stream()->Record(slot.done.get()));
  slot.is_full = false;
  slot.runs = true;

  // The GPU is busy with this step: time for the next one's batch.
  RETURN_IF_ERROR(Finish(other, finished));
  if (step + 1 < end_step_) RETURN_IF_ERROR(Feed(step + 1, batches, other));
  if (local()) return absl::OkStatus();
  RETURN_IF_ERROR(SubmitAll(step));
  return Finish(slot, finished);
}

// REQUIRES: no step runs on the slot.
absl::Status CudaTrainingStep::Feed(int64_t step, Loader* batches, Slot& slot) {
  timer_->Enter(StepPart::kDataWait);
  ASSIGN_OR_RETURN(const Batch* batch, NextTraced(step, batches, *timer_));
  timer_->Enter(StepPart::kHostToDevice);
  const TraceSpan span(timer_->track(), "H2D", {.step = step});
  const BatchPlan& plan = batch->plan;
  CHECK_LE(std::ssize(plan.samples), options_.batch_max);
  auto* const host = static_cast<std::byte*>(slot.host->data());
  new (host + SlotLayout::kValues)
      CudaStepValues{.step = plan.step,
                     .first_sample = plan.first_sample,
                     .loss_scale = 1.0f / static_cast<float>(plan.global_count),
                     .optimizer = local() ? options_.local->ScalarsOf(plan.step) : CudaOptimizerScalars{}};
  new (host + SlotLayout::kResult) CudaStepResult;
  std::copy(batch->labels.begin(), batch->labels.end(), reinterpret_cast<int32_t*>(host + layout_.labels));
  std::copy(batch->pixels.begin(), batch->pixels.end(), reinterpret_cast<uint8_t*>(host + layout_.pixels));
  RETURN_IF_ERROR(feed_->CopyToDevice(host, slot.device->data(), layout_.pixels + std::ssize(batch->pixels)));
  RETURN_IF_ERROR(feed_->Record(slot.fed.get()));
  slot.plan = plan;
  slot.is_full = true;
  return absl::OkStatus();
}

// All of the slot's step, enqueued.
absl::Status CudaTrainingStep::Launch(Slot& slot) {
  const auto batch = std::ssize(slot.plan.samples);
  // An empty batch is rare, and has nothing to launch but zeros.
  if (batch == 0 || options_.graphs == CudaGraphs::kNone) return RunOneByOne(slot);
  Recording* const recording = RecordingOf(batch);
  if (recording == nullptr) {
    recordings_.push_back(std::make_unique<Recording>(Recording{.batch = batch}));
    return RunOneByOne(slot);
  }
  std::vector<Segment>& segments = recording->segments[static_cast<size_t>(&slot - slots_.data())];
  if (segments.empty()) {
    ASSIGN_OR_RETURN(segments, Capture(slot));
  }
  for (const Segment& segment : segments) {
    RETURN_IF_ERROR(BringParameters(segment.reads));
    const TraceSpan span(timer_->track(), "launch", {.step = slot.plan.step});
    RETURN_IF_ERROR(segment.graph->Launch());
  }
  return absl::OkStatus();
}

absl::Status CudaTrainingStep::RunOneByOne(Slot& slot) {
  Bind(&slot);
  const Network::TrainStep work = WorkOf(slot);
  Normalize(At<uint8_t>(slot, layout_.pixels), work.input.batch);
  RETURN_IF_ERROR(network_.Forward(work, [this](int layer) { return BringParameters(network_.LayerRange(layer)); }));
  RETURN_IF_ERROR(BringParameters({0, element_count()}));
  RETURN_IF_ERROR(Backward(work, slot));
  Bind(nullptr);
  // Errors of single calls are kept for this.
  return device_.Synchronize();
}

absl::StatusOr<std::vector<Segment>> CudaTrainingStep::Capture(Slot& slot) {
  Bind(&slot);
  const Network::TrainStep work = WorkOf(slot);
  std::vector<Segment> segments(1);
  std::vector<bool> is_read(static_cast<size_t>(buckets_.bucket_count()), false);
  const auto end_segment = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(segments.back().graph, device_.EndCapture());
    return absl::OkStatus();
  };
  // Cuts before a layer that reads buckets nobody has read; the first one reads them at its beginning.
  const auto before_layer = [&](int layer) -> absl::Status {
    const ElementRange reads = network_.LayerRange(layer);
    if (local() || reads.size() == 0) return absl::OkStatus();
    bool reads_new = false;
    for (int b = buckets_.BucketOf(reads.end - 1); b <= buckets_.BucketOf(reads.begin); ++b) {
      reads_new = reads_new || !is_read[static_cast<size_t>(b)];
      is_read[static_cast<size_t>(b)] = true;
    }
    if (!reads_new) return absl::OkStatus();
    if (segments.back().reads.size() > 0) {
      RETURN_IF_ERROR(end_segment());
      segments.emplace_back();
      RETURN_IF_ERROR(device_.BeginCapture());
    }
    segments.back().reads = reads;
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(device_.BeginCapture());
  Normalize(At<uint8_t>(slot, layout_.pixels), work.input.batch);
  RETURN_IF_ERROR(network_.Forward(work, before_layer));
  RETURN_IF_ERROR(Backward(work, slot));
  RETURN_IF_ERROR(end_segment());
  Bind(nullptr);
  // Backward needs every bucket awaited, those too that no layer reads.
  segments.back().reads = {0, element_count()};
  return segments;
}

// Backward, and what follows it on the GPU.
absl::Status CudaTrainingStep::Backward(const Network::TrainStep& work, Slot& slot) {
  int next_bucket = 0;
  RETURN_IF_ERROR(network_.Backward(work, [&](int l) -> absl::Status {
    const ElementRange layer = network_.LayerRange(l);
    if (local() || layer.size() == 0) return absl::OkStatus();
    for (; next_bucket < buckets_.bucket_count() && buckets_.bucket(next_bucket).begin >= layer.begin; ++next_bucket) {
      const ElementRange range = buckets_.bucket(next_bucket);
      RETURN_IF_ERROR(device_.Fork(downloads_.get()));
      RETURN_IF_ERROR(downloads_->CopyToHost(gradients_->floats() + range.begin, host_gradients_.data() + range.begin,
                                             range.size() * kFloatBytes));
      RETURN_IF_ERROR(downloads_->Record(downloaded_[static_cast<size_t>(next_bucket)].get()));
    }
    return absl::OkStatus();
  }));
  auto* const result = At<CudaStepResult>(slot, SlotLayout::kResult);
  if (local()) {
    device_.FindNonFinite(gradients_->floats(), element_count(), result);
    options_.local->Apply(Floats(*gradients_), Floats(*parameters_));
  } else {
    CHECK_EQ(next_bucket, buckets_.bucket_count());
    RETURN_IF_ERROR(device_.Join(downloads_.get()));
  }
  return device_.stream()->CopyToHost(result, slot.result->data(), sizeof(CudaStepResult));
}

// Makes the GPU's work from here on wait for what the exchange has made of `range`.
absl::Status CudaTrainingStep::BringParameters(ElementRange range) {
  if (local()) return absl::OkStatus();
  bool brought = false;
  RETURN_IF_ERROR(flights_.Await(range, *timer_, [&](int b) {
    brought = true;
    const ElementRange bucket = buckets_.bucket(b);
    const TraceSpan span(timer_->track(), "H2D", {.bucket = b});
    return uploads_->CopyToDevice(parameters().data() + bucket.begin, parameters_->floats() + bucket.begin,
                                  bucket.size() * kFloatBytes);
  }));
  if (!brought) return absl::OkStatus();
  RETURN_IF_ERROR(uploads_->Record(uploaded_.get()));
  return device_.stream()->Wait(uploaded_.get());
}

absl::Status CudaTrainingStep::SubmitAll(int64_t step) {
  timer_->Enter(StepPart::kBackward);
  for (int b = 0; b < buckets_.bucket_count(); ++b) {
    {
      const TraceSpan span(timer_->track(), "D2H", {.step = step, .bucket = b});
      RETURN_IF_ERROR(downloaded_[static_cast<size_t>(b)]->Wait());
    }
    const ElementRange range = buckets_.bucket(b);
    RETURN_IF_ERROR(flights_.Check(step, range, host_gradients_));
    flights_.SubmitFrom(range.begin, step, host_gradients_, *timer_);
  }
  return absl::OkStatus();
}

// Waits for the step that runs on the slot, if one does.
absl::Status CudaTrainingStep::Finish(Slot& slot, std::vector<FinishedStep>* finished) {
  if (!slot.runs) return absl::OkStatus();
  timer_->Enter(StepPart::kBackward);
  {
    const TraceSpan span(timer_->track(), "wait for the GPU", {.step = slot.plan.step});
    RETURN_IF_ERROR(slot.done->Wait());
  }
  slot.runs = false;
  const auto& result = *static_cast<const CudaStepResult*>(slot.result->data());
  if (result.non_finite_element >= 0)
    return flights_.NonFinite(slot.plan.step, result.non_finite_element, "not finite");
  finished->push_back({.step = slot.plan.step,
                       .global_count = slot.plan.global_count,
                       .batch = std::ssize(slot.plan.samples),
                       .loss = {.loss_sum = result.loss_sum, .correct = result.correct}});
  return absl::OkStatus();
}

absl::Status CudaTrainingStep::Settle(std::vector<FinishedStep>* finished) {
  // The older step first.
  const bool newer_first = slots_[0].plan.step > slots_[1].plan.step;
  RETURN_IF_ERROR(Finish(slots_[newer_first ? 1 : 0], finished));
  RETURN_IF_ERROR(Finish(slots_[newer_first ? 0 : 1], finished));
  RETURN_IF_ERROR(BringParameters({0, element_count()}));
  if (local()) device_.CopyToHost(parameters_->data(), own_parameters_->data(), element_count() * kFloatBytes);
  return device_.Synchronize();
}

absl::StatusOr<LossResult> CudaTrainingStep::Evaluate(const Batch& batch) {
  CHECK_LE(std::ssize(batch.labels), options_.evaluation_batch_max);
  device_.CopyToDevice(batch.pixels.data(), evaluation_pixels_->data(), std::ssize(batch.pixels));
  device_.CopyToDevice(batch.labels.data(), evaluation_labels_->data(),
                       static_cast<int64_t>(batch.labels.size_bytes()));
  Normalize(static_cast<const uint8_t*>(evaluation_pixels_->data()), std::ssize(batch.labels));
  RETURN_IF_ERROR(network_.Evaluate({.images = images_->floats(),
                                     .labels = static_cast<const int32_t*>(evaluation_labels_->data()),
                                     .batch = std::ssize(batch.labels)},
                                    Floats(*parameters_)));
  const LossResult loss = network_.Result();
  RETURN_IF_ERROR(device_.Synchronize());
  return loss;
}

Network::TrainStep CudaTrainingStep::WorkOf(Slot& slot) {
  return {.input = {.images = images_->floats(),
                    .labels = At<const int32_t>(slot, layout_.labels),
                    .batch = std::ssize(slot.plan.samples)},
          .step = slot.plan.step,
          .parameters = Floats(*parameters_),
          .gradients = Floats(*gradients_)};
}

void CudaTrainingStep::Normalize(const uint8_t* pixels, int64_t batch) {
  device_.NormalizePixels({.pixels = pixels,
                           .count = batch * options_.image_values,
                           .channels = options_.channels,
                           .offset = offset_->floats(),
                           .scale = scale_->floats(),
                           .out = images_->floats()});
}

void CudaTrainingStep::Bind(Slot* slot) {
  device_.BindStepValues(slot == nullptr ? nullptr : At<const CudaStepValues>(*slot, SlotLayout::kValues));
  device_.BindStepResult(slot == nullptr ? nullptr : At<CudaStepResult>(*slot, SlotLayout::kResult));
}

// Null if none of this batch size was run.
Recording* CudaTrainingStep::RecordingOf(int64_t batch) {
  for (const auto& recording : recordings_) {
    if (recording->batch == batch) return recording.get();
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TrainingStep>> CreateCudaTrainingStep(const TrainingStepParts& parts,
                                                                     const CudaTrainingStepOptions& options) {
  auto step = std::make_unique<CudaTrainingStep>(parts, options);
  RETURN_IF_ERROR(step->Allocate());
  return step;
}

}  // namespace starring
