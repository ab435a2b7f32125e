#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/status.h"
#include "common/job/leaf_shares.h"
#include "worker/step/in_flight_buckets.h"
#include "worker/step/node_sum.h"
#include "worker/step/training_step.h"

namespace starring {
namespace {

NetworkInput InputOf(const Batch& batch) {
  return {.images = batch.images.data(),
          .targets = LossTargets(batch.target_data()),
          .batch = static_cast<int64_t>(batch.plan.samples.size())};
}

// The values of a leaf: loss, correct answers, then what its batch adds to batch norm's running statistics.
constexpr size_t kLossValue = 0;
constexpr size_t kCorrectValue = 1;
constexpr size_t kStatisticsValue = 2;

// Without micro-batches the worker's part of the samples is a leaf, too, the only one that this step knows of.
std::vector<int> OwnersOf(const TrainingStepParts& parts) {
  if (parts.micro_batches == 0) return {0};
  return parts.leaf_owners.empty() ? DealLeavesEvenly(parts.micro_batches, parts.world_size) : parts.leaf_owners;
}

class CpuTrainingStep final : public TrainingStep {
 public:
  explicit CpuTrainingStep(const TrainingStepParts& parts)
      : network_(*parts.network),
        exchange_(*parts.exchange),
        rank_(parts.rank),
        micro_batches_(parts.micro_batches),
        contributors_(ContributorsOf(OwnersOf(parts))),
        // A worker's part of the samples is a leaf, too, the only one of its node.
        share_(ShareOf(parts.micro_batches > 0 ? parts.rank : 0, OwnersOf(parts))),
        on_leaf_(parts.on_leaf),
        exchange_part_(parts.exchange_part),
        in_flight_({.buckets = parts.buckets,
                    .layout = &parts.network->layout(),
                    .exchange = parts.exchange,
                    .rank = parts.rank,
                    .exchange_part = parts.exchange_part}) {}

  absl::Status Allocate(Device* device) {
    const int64_t bytes = element_count() * static_cast<int64_t>(sizeof(float));
    // Begin frees what the exchange replaces: whether it has memory of its own is known only after its Start.
    ASSIGN_OR_RETURN(parameters_, device->Allocate(bytes));
    for (size_t i = 0; i < share_.size(); ++i) {
      ASSIGN_OR_RETURN(gradients_.emplace_back(), device->Allocate(bytes));
    }
    const int64_t statistics_size = has_leaves() ? network_.statistics_size() : 0;
    ASSIGN_OR_RETURN(sum_, NodeSum::Create({.share = share_,
                                            .element_count = element_count(),
                                            .value_count = kStatisticsValue + static_cast<size_t>(statistics_size),
                                            .device = device}));
    added_statistics_.resize(static_cast<size_t>(statistics_size));
    return absl::OkStatus();
  }

  Loader::Format batch_format() const override { return Loader::Format::kNormalized; }
  std::span<float> initial_parameters() override { return WholeOf(*parameters_); }

  absl::Status Begin(const Plan& plan) override {
    timer_ = plan.timer;
    // From now on, the exchange's own memory replaces what initial_parameters() returned.
    if (!exchange_.memory().parameters.empty()) parameters_.reset();
    if (!exchange_.memory().gradients.empty()) gradients_.clear();
    return absl::OkStatus();
  }

  absl::Status Run(int64_t step, Loader* batches, std::vector<FinishedStep>* finished) override {
    FinishedStep done{.step = step};
    std::vector<double> values;
    for (size_t node = 0; node < share_.size(); ++node) {
      for (int i = 0; i < share_[node].size(); ++i) RETURN_IF_ERROR(RunLeaf(node, i, batches, &done));
      values.insert(values.end(), sum_->values().begin(), sum_->values().end());
    }
    if (has_leaves()) {
      ASSIGN_OR_RETURN(values, AddUpValues(values));
      done.batch = done.global_count;
      network_.UpdateStatistics(std::span(values).subspan(kStatisticsValue));
    }
    done.loss = {.loss_sum = values[kLossValue], .correct = static_cast<int64_t>(values[kCorrectValue])};
    finished->push_back(done);
    return absl::OkStatus();
  }

  // No step is added: on a CPU a step has finished when Run returns. Only its buckets may be in flight.
  absl::Status Settle(std::vector<FinishedStep>*) override { return Await({0, element_count()}); }

  void UseBuckets(const BucketMap& buckets) override { in_flight_.UseBuckets(buckets); }

  std::span<const float> parameters() const override {
    return parameters_ == nullptr ? exchange_.memory().parameters : WholeOf(*parameters_);
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
  std::span<float> GradientsOf(size_t node) {
    if (!gradients_.empty()) return WholeOf(*gradients_[node]);
    return exchange_.memory().gradients[node];
  }
  bool has_leaves() const { return micro_batches_ > 0; }

  // The `index`-th leaf of a node of the share.
  absl::Status RunLeaf(size_t node, int index, Loader* batches, FinishedStep* done) {
    timer_->Enter(StepPart::kDataWait);
    const int64_t step = done->step;
    ASSIGN_OR_RETURN(const Batch* batch, NextTraced(step, batches, *timer_));
    CHECK_EQ(batch->plan.step, step);
    // The gradients are in the exchange's own memory if it has some: then backward writes where the exchange reads, and
    // Submit copies nothing.
    const std::span<float> gradients = GradientsOf(node);
    const Network::TrainStep work{.input = InputOf(*batch),
                                  .step = step,
                                  .first_sample = batch->plan.first_sample,
                                  // The scale is that of the global batch: contributions are then added, and no rank
                                  // divides, even if the ranks have different numbers of samples.
                                  .loss_scale = 1.0f / static_cast<float>(batch->plan.global_count),
                                  .parameters = parameters(),
                                  .gradients = sum_->BeginLeaf(index, share_[node].size(), gradients),
                                  .added_statistics = added_statistics_};

    timer_->Enter(StepPart::kForward);
    RETURN_IF_ERROR(network_.Forward(work, [this](int layer) { return Await(network_.LayerRange(layer)); }));
    // Backward submits every bucket again, so every bucket must have been awaited, also one without a layer's tensor.
    RETURN_IF_ERROR(Await({0, element_count()}));
    timer_->Enter(StepPart::kBackward);
    RETURN_IF_ERROR(network_.Backward(work, [&](int l) -> absl::Status {
      const ElementRange layer = network_.LayerRange(l);
      if (layer.size() == 0) return absl::OkStatus();
      sum_->AddGradient(layer);
      // The node's gradient has what is not finite in any of its leaves'.
      if (!sum_->is_last_leaf()) return absl::OkStatus();
      // The check comes while the layer's gradients are still in the cache, and before any of them leaves.
      RETURN_IF_ERROR(in_flight_.Check(step, layer, gradients));
      in_flight_.SubmitFrom(layer.begin, step, gradients, *timer_,
                            {.number = static_cast<int>(node), .is_last = node + 1 == share_.size()});
      return absl::OkStatus();
    }));
    AddValues(*batch);
    if (on_leaf_ != nullptr) on_leaf_();
    done->global_count = batch->plan.global_count;
    done->batch += work.input.batch;
    return absl::OkStatus();
  }

  void AddValues(const Batch& batch) {
    const LossResult loss = network_.Result();
    const std::span<double> values = sum_->values();
    values[kLossValue] = loss.loss_sum;
    values[kCorrectValue] = static_cast<double>(loss.correct);
    // The statistics of the step are the means over its leaves, each counted by its samples; one without any adds none.
    const double weight = static_cast<double>(batch.plan.samples.size()) / static_cast<double>(batch.plan.global_count);
    for (size_t i = 0; i < added_statistics_.size(); ++i) {
      values[kStatisticsValue + i] = weight == 0 ? 0 : weight * double{added_statistics_[i]};
    }
    sum_->AddValues();
  }

  // The values of all nodes from those of this worker's, in the order of the share.
  absl::StatusOr<std::vector<double>> AddUpValues(std::span<const double> mine) {
    const size_t count = mine.size() / share_.size();
    std::vector<double> all(contributors_.size() * count);
    for (size_t i = 0; i < contributors_.size(); ++i) {
      if (contributors_[i].rank != rank_) continue;
      const auto values = mine.subspan(static_cast<size_t>(contributors_[i].node) * count, count);
      std::ranges::copy(values, all.begin() + static_cast<std::ptrdiff_t>(i * count));
    }
    // Zeros elsewhere make the sum a gather. It waits for all workers, as the parameters of the next step do.
    timer_->Enter(exchange_part_);
    RETURN_IF_ERROR(SumInParts(SumPurpose::kLeafValues, all, &exchange_));
    return SumOfNodes(contributors_, micro_batches_, all);
  }

  absl::Status Await(ElementRange range) {
    // There is nothing to do on arrival: the exchange has written the parameters where forward reads them.
    return in_flight_.Await(range, *timer_, [](int) { return absl::OkStatus(); });
  }

  Network& network_;
  GradientExchange& exchange_;
  const int rank_;
  const int micro_batches_;
  const std::vector<Contributor> contributors_;
  const LeafShare share_;  // a node at least
  const std::function<void()> on_leaf_;
  const StepPart exchange_part_;
  InFlightBuckets in_flight_;
  std::optional<NodeSum> sum_;
  std::vector<float> added_statistics_;  // by the leaf's batch
  StepTimer* timer_ = nullptr;
  // Null, and none, if the exchange has memory for them.
  std::unique_ptr<DeviceBuffer> parameters_;
  std::vector<std::unique_ptr<DeviceBuffer>> gradients_;  // by node of the share
};

}  // namespace

absl::StatusOr<std::unique_ptr<TrainingStep>> CreateCpuTrainingStep(const TrainingStepParts& parts, Device* device) {
  auto step = std::make_unique<CpuTrainingStep>(parts);
  RETURN_IF_ERROR(step->Allocate(device));
  return step;
}

}  // namespace starring
