#include <utility>

#include "common/check.h"
#include "common/status.h"
#include "worker/step/in_flight_buckets.h"
#include "worker/step/training_step.h"

namespace starring {
namespace {

NetworkInput InputOf(const Batch& batch) {
  return {.images = batch.images.data(),
          .labels = batch.labels.data(),
          .batch = static_cast<int64_t>(batch.plan.samples.size())};
}

class CpuTrainingStep final : public TrainingStep {
 public:
  explicit CpuTrainingStep(const TrainingStepParts& parts)
      : network_(*parts.network),
        exchange_(*parts.exchange),
        in_flight_({.buckets = parts.buckets,
                    .layout = &parts.network->layout(),
                    .exchange = parts.exchange,
                    .rank = parts.rank,
                    .exchange_part = parts.exchange_part}) {}

  absl::Status Allocate(Device* device) {
    const int64_t bytes = element_count() * static_cast<int64_t>(sizeof(float));
    // Begin frees what the exchange replaces: whether it has memory of its own is known only after its Start.
    ASSIGN_OR_RETURN(parameters_, device->Allocate(bytes));
    ASSIGN_OR_RETURN(gradients_, device->Allocate(bytes));
    return absl::OkStatus();
  }

  Loader::Format batch_format() const override { return Loader::Format::kNormalized; }
  std::span<float> initial_parameters() override { return WholeOf(*parameters_); }

  absl::Status Begin(const Plan& plan) override {
    timer_ = plan.timer;
    // From now on, the exchange's own memory replaces what initial_parameters() returned.
    if (!exchange_.parameter_memory().empty()) parameters_.reset();
    if (!exchange_.gradient_memory().empty()) gradients_.reset();
    return absl::OkStatus();
  }

  absl::Status Run(int64_t step, Loader* batches, std::vector<FinishedStep>* finished) override {
    timer_->Enter(StepPart::kDataWait);
    ASSIGN_OR_RETURN(const Batch* batch, NextTraced(step, batches, *timer_));
    CHECK_EQ(batch->plan.step, step);
    // The gradients are in the exchange's own memory if it has some: then backward writes where the exchange reads, and
    // Submit copies nothing.
    const std::span<float> gradients = this->gradients();
    const Network::TrainStep work{.input = InputOf(*batch),
                                  .step = step,
                                  .first_sample = batch->plan.first_sample,
                                  // The scale is that of the global batch: contributions are then added, and no rank
                                  // divides, even if the ranks have different numbers of samples.
                                  .loss_scale = 1.0f / static_cast<float>(batch->plan.global_count),
                                  .parameters = parameters(),
                                  .gradients = gradients};

    timer_->Enter(StepPart::kForward);
    RETURN_IF_ERROR(network_.Forward(work, [this](int layer) { return Await(network_.LayerRange(layer)); }));
    // Backward submits every bucket again, so every bucket must have been awaited, also one without a layer's tensor.
    RETURN_IF_ERROR(Await({0, element_count()}));
    timer_->Enter(StepPart::kBackward);
    RETURN_IF_ERROR(network_.Backward(work, [&](int l) -> absl::Status {
      const ElementRange layer = network_.LayerRange(l);
      if (layer.size() == 0) return absl::OkStatus();
      // The check comes while the layer's gradients are still in the cache, and before any of them leaves.
      RETURN_IF_ERROR(in_flight_.Check(step, layer, gradients));
      in_flight_.SubmitFrom(layer.begin, step, gradients, *timer_);
      return absl::OkStatus();
    }));
    finished->push_back(
        {.step = step, .global_count = batch->plan.global_count, .batch = work.input.batch, .loss = network_.Result()});
    return absl::OkStatus();
  }

  // No step is added: on a CPU a step has finished when Run returns. Only its buckets may be in flight.
  absl::Status Settle(std::vector<FinishedStep>*) override { return Await({0, element_count()}); }

  void UseBuckets(const BucketMap& buckets) override { in_flight_.UseBuckets(buckets); }

  std::span<const float> parameters() const override {
    return parameters_ == nullptr ? exchange_.parameter_memory() : WholeOf(*parameters_);
  }

  absl::Status GatherOptimizerState(std::span<const std::span<float>> state) override {
    return exchange_.GatherOptimizerState(state);
  }

  absl::StatusOr<LossResult> Evaluate(const Batch& batch) override {
    RETURN_IF_ERROR(network_.Evaluate(InputOf(batch), parameters()));
    return network_.Result();
  }

 private:
  int64_t element_count() const { return network_.layout().element_count(); }
  std::span<float> WholeOf(DeviceBuffer& buffer) const {
    return {buffer.floats(), static_cast<size_t>(element_count())};
  }
  std::span<float> gradients() { return gradients_ == nullptr ? exchange_.gradient_memory() : WholeOf(*gradients_); }
  absl::Status Await(ElementRange range) {
    // There is nothing to do on arrival: the exchange has written the parameters where forward reads them.
    return in_flight_.Await(range, *timer_, [](int) { return absl::OkStatus(); });
  }

  Network& network_;
  GradientExchange& exchange_;
  InFlightBuckets in_flight_;
  StepTimer* timer_ = nullptr;
  // Null if the exchange has memory for them.
  std::unique_ptr<DeviceBuffer> parameters_;
  std::unique_ptr<DeviceBuffer> gradients_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TrainingStep>> CreateCpuTrainingStep(const TrainingStepParts& parts, Device* device) {
  auto step = std::make_unique<CpuTrainingStep>(parts);
  RETURN_IF_ERROR(step->Allocate(device));
  return step;
}

}  // namespace starring
