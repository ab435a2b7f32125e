#include "worker/model/network.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/memory.h"
#include "common/base/status.h"
#include "worker/model/layer_file.h"
#include "worker/model/network_graph.h"
#include "worker/model/network_plan.h"
#include "worker/model/network_program.h"

namespace starring {
namespace {

absl::StatusOr<NetworkGraph> CreateGraph(const LayerFile& file, const NetworkOptions& options) {
  return NetworkGraph::Create(
      file,
      {.height = options.height, .width = options.width, .channels = options.channels, .outputs = options.outputs});
}

int64_t EvaluationBatchMax(const NetworkOptions& options) {
  return options.evaluation_batch_max == 0 ? options.batch_max : options.evaluation_batch_max;
}

int64_t ArenaBytes(const NetworkOptions& options, const NetworkProgram& training, const NetworkProgram& evaluation) {
  // One arena serves both, because training and evaluation never run at the same time.
  return std::max(options.batch_max * training.arena_sample_bytes,
                  EvaluationBatchMax(options) * evaluation.arena_sample_bytes);
}

int64_t RoundedBytes(const NetworkOptions& options, const NetworkGraph& graph) {
  return options.element == Element::kFloat32 ? 0 : graph.layout().element_count() * BytesOf(options.element);
}

}  // namespace

class Network::Impl {
 public:
  Impl(LayerFile file, NetworkGraph graph, const NetworkOptions& options, Device* device)
      : file_(std::move(file)),
        graph_(std::move(graph)),
        training_(BuildTrainingProgram(graph_, options.element)),
        evaluation_(BuildEvaluationProgram(graph_, options.element)),
        options_(options),
        device_(device) {
    options_.evaluation_batch_max = EvaluationBatchMax(options_);
    // The names are interned once, because a trace event keeps only a pointer to its name.
    for (const GraphLayer& layer : graph_.layers()) {
      if (options_.track == nullptr) break;
      forward_names_.push_back(options_.track->Intern("forward " + layer.name));
      backward_names_.push_back(options_.track->Intern("backward " + layer.name));
    }
  }

  absl::Status Allocate() {
    // The arena comes first: plans keep pointers into it.
    ASSIGN_OR_RETURN(arena_, device_->Allocate(arena_bytes()), "activations and gradients of ", file_.file_name());
    RETURN_IF_ERROR(AllocateStatistics());
    if (const int64_t bytes = RoundedBytes(options_, graph_); bytes > 0) {
      ASSIGN_OR_RETURN(rounded_, device_->Allocate(bytes), "rounded parameters");
    }
    // A device that lacks an operation must refuse it now, not after training has begun.
    RETURN_IF_ERROR(PlanTraining(options_.batch_max));
    return PlanEvaluation(options_.evaluation_batch_max);
  }

  absl::Status PlanTraining(int64_t batch) {
    CHECK_GE(batch, 1);
    CHECK_LE(batch, options_.batch_max);
    return PlanOf(NetworkPlan::Mode::kTraining, batch).status();
  }
  absl::Status PlanEvaluation(int64_t batch) {
    CHECK_LE(batch, options_.evaluation_batch_max);
    return PlanOf(NetworkPlan::Mode::kEvaluation, batch).status();
  }

  const NetworkGraph& graph() const { return graph_; }
  const std::vector<NetworkBuffer>& buffers() const { return buffers_; }

  int64_t arena_bytes() const { return ArenaBytes(options_, training_, evaluation_); }

  absl::Status Forward(const TrainStep& step, absl::FunctionRef<absl::Status(int)> before_layer) {
    CHECK_EQ(std::ssize(step.parameters), graph_.layout().element_count());
    CHECK_LE(step.input.batch, options_.batch_max);
    // Forgets the plan before anything can fail: Result and operations must not answer for an earlier batch.
    plan_ = nullptr;
    // Operations are made for one sample or more; without samples the loss is zero.
    if (step.input.batch > 0) {
      ASSIGN_OR_RETURN(plan_, PlanOf(NetworkPlan::Mode::kTraining, step.input.batch));
    }
    NetworkPlan::Pointers pointers = PointersOf(step);
    if (!step.added_statistics.empty()) pointers.statistics = StatisticsIn(step.added_statistics);
    for (int l = 0; l < layer_count(); ++l) {
      // The call is made without samples too: the rank awaits and submits its buckets as all others do.
      RETURN_IF_ERROR(before_layer(l));
      const TraceSpan span(options_.track, NameOf(forward_names_, l), {.step = step.step});
      if (plan_ == nullptr) continue;
      if (step.arrive == TrainStep::Parameters::kByLayer) RoundLayer(l, pointers);
      if (step.arrive == TrainStep::Parameters::kBefore && l == 0) Round(AllParameters(), pointers);
      plan_->RunForward(l, pointers);
    }
    {
      const TraceSpan span(options_.track, "loss", {.step = step.step});
      if (plan_ != nullptr) plan_->RunLoss(pointers);
    }
    // From here on the arena has the activations of this batch. Backward compares its batch with this number.
    ready_batch_ = step.input.batch;
    return absl::OkStatus();
  }

  absl::Status Backward(const TrainStep& step, absl::FunctionRef<absl::Status(int)> after_layer) {
    CHECK_EQ(std::ssize(step.gradients), graph_.layout().element_count());
    // Another Forward or an Evaluate would have overwritten the activations in the arena.
    CHECK_EQ(step.input.batch, ready_batch_) << "Backward without Forward of the same step";
    // Backward overwrites activations, so that it cannot begin again, even after an error.
    ready_batch_ = kNoBatch;
    const NetworkPlan::Pointers pointers = PointersOf(step);
    for (int l = layer_count() - 1; l >= 0; --l) {
      {
        const TraceSpan span(options_.track, NameOf(backward_names_, l), {.step = step.step});
        if (plan_ != nullptr) {
          plan_->RunBackward(l, pointers);
        } else {
          ClearGradients(l, step.gradients);
        }
      }
      RETURN_IF_ERROR(after_layer(l));
    }
    return absl::OkStatus();
  }

  absl::Status Evaluate(const NetworkInput& input, std::span<const float> parameters) {
    CHECK_EQ(std::ssize(parameters), graph_.layout().element_count());
    CHECK_LE(input.batch, options_.evaluation_batch_max);
    plan_ = nullptr;
    evaluated_images_ = input.images;
    // The evaluation overwrites the arena, and with it the activations that a Backward would need.
    ready_batch_ = kNoBatch;
    if (input.batch == 0) return absl::OkStatus();
    ASSIGN_OR_RETURN(plan_, PlanOf(NetworkPlan::Mode::kEvaluation, input.batch));
    const NetworkPlan::Pointers pointers{.images = input.images,
                                         .targets = input.targets,
                                         .parameters = parameters.data(),
                                         .rounded_parameters = RoundedParameters()};
    Round(AllParameters(), pointers);
    for (int l = 0; l < layer_count(); ++l) plan_->RunForward(l, pointers);
    plan_->RunLoss(pointers);
    return absl::OkStatus();
  }

  absl::Status ReadBuffer(const NetworkBuffer& buffer, std::span<float> values) {
    CHECK_EQ(values.size(), buffer.values.size());
    device_->CopyToHost(buffer.values.data(), values.data(), static_cast<int64_t>(values.size_bytes()));
    return device_->Synchronize();
  }

  absl::Status WriteBuffer(const NetworkBuffer& buffer, std::span<const float> values) {
    CHECK_EQ(values.size(), buffer.values.size());
    // The wait is for the copy, which reads `values`: the caller may free them when this function returns.
    device_->CopyToDevice(values.data(), buffer.values.data(), static_cast<int64_t>(values.size_bytes()));
    return device_->Synchronize();
  }

  int64_t statistics_size() const {
    int64_t size = 0;
    for (const NetworkBuffer& buffer : buffers_) size += std::ssize(buffer.values);
    return size;
  }

  void UpdateStatistics(std::span<const double> added) {
    CHECK_EQ(std::ssize(added), statistics_size());
    size_t next = 0, buffer = 0;
    for (const GraphLayer& layer : graph_.layers()) {
      if (layer.kind != LayerKind::kBatchNorm) continue;
      const double momentum = layer.momentum;
      for (const size_t last = buffer + 1; buffer <= last; ++buffer) {  // mean and variance
        for (float& running : buffers_[buffer].values) {
          running = static_cast<float>((1 - momentum) * running + added[next++]);
        }
      }
    }
  }

  absl::Status ReadOutputs(std::span<float> outputs) {
    CHECK(plan_ != nullptr && plan_->mode() == NetworkPlan::Mode::kEvaluation);
    CHECK_EQ(std::ssize(outputs), plan_->batch() * graph_.data().outputs);
    device_->CopyToHost(plan_->Logits({.images = evaluated_images_}), outputs.data(),
                        static_cast<int64_t>(outputs.size_bytes()));
    return device_->Synchronize();
  }

  LossResult Result() { return plan_ == nullptr ? LossResult{} : plan_->Result(); }
  std::shared_ptr<const void> operations() const { return plan_; }

 private:
  static constexpr int64_t kNoBatch = -1;

  int layer_count() const { return static_cast<int>(graph_.layers().size()); }

  static const char* NameOf(const std::vector<const char*>& names, int layer) {
    return names.empty() ? nullptr : names[layer];
  }

  ElementRange AllParameters() const { return {0, graph_.layout().element_count()}; }

  // Null with float32, as which layers read the parameters themselves.
  Elements RoundedParameters() const {
    return rounded_ == nullptr ? Elements() : Elements(options_.element, rounded_->data());
  }

  // Copies what dense layers and convolutions read of the parameters. Backward reads the copy again: it is of the same
  // step, whatever the optimizer has done to the vector since.
  void Round(const ElementRange& range, const NetworkPlan::Pointers& pointers) {
    if (rounded_ == nullptr || range.size() == 0) return;
    auto* const to = static_cast<std::byte*>(rounded_->data()) + range.begin * BytesOf(options_.element);
    device_->Cast(pointers.parameters + range.begin, {options_.element, to}, range.size());
  }
  void RoundLayer(int layer, const NetworkPlan::Pointers& pointers) {
    if (NetworkPlan::ReadsRounded(graph_.layers()[layer])) Round(graph_.LayerRange(layer), pointers);
  }

  NetworkPlan::Pointers PointersOf(const TrainStep& step) const {
    return {.images = step.input.images,
            .targets = step.input.targets,
            .parameters = step.parameters.data(),
            .rounded_parameters = RoundedParameters(),
            .gradients = step.gradients.data(),
            .step = step.step,
            .first_sample = step.first_sample,
            .loss_scale = step.loss_scale};
  }

  // `values` as if they were the running statistics, which are zero: an update then leaves what the batch adds to them.
  std::span<const RunningStatistics> StatisticsIn(std::span<float> values) {
    CHECK_EQ(std::ssize(values), statistics_size());
    std::fill(values.begin(), values.end(), 0.0f);
    added_statistics_.assign(static_cast<size_t>(layer_count()), {});
    float* next = values.data();
    for (int l = 0; l < layer_count(); ++l) {
      const GraphLayer& layer = graph_.layers()[l];
      if (layer.kind != LayerKind::kBatchNorm) continue;
      added_statistics_[l] = {.mean = next, .variance = next + layer.in.channels};
      next += 2 * layer.in.channels;
    }
    return added_statistics_;
  }

  // Allocates one block of device memory for all running statistics, each on a 64-byte boundary, and fills it with
  // PyTorch's initial values: mean 0, variance 1.
  absl::Status AllocateStatistics() {
    std::vector<float> initial;
    struct Place {
      int layer;
      size_t mean, variance;
    };
    std::vector<Place> places;
    const auto append = [&](int64_t count, float value) {
      const size_t begin = initial.size();
      initial.resize(begin + count, value);
      initial.resize(static_cast<size_t>(RoundUp(std::ssize(initial), Layout::kAlignmentElements)));
      return begin;
    };
    for (int l = 0; l < layer_count(); ++l) {
      const GraphLayer& layer = graph_.layers()[l];
      if (layer.kind != LayerKind::kBatchNorm) continue;
      // The places are indices and not pointers, because `initial` still grows.
      const size_t mean = append(layer.in.channels, 0);
      places.push_back({l, mean, append(layer.in.channels, 1)});
    }
    statistics_.resize(layer_count());
    if (places.empty()) return absl::OkStatus();
    const int64_t size_bytes = std::ssize(initial) * static_cast<int64_t>(sizeof(float));
    ASSIGN_OR_RETURN(statistics_memory_, device_->Allocate(size_bytes));
    device_->CopyToDevice(initial.data(), statistics_memory_->data(), size_bytes);
    for (const Place& place : places) {
      const GraphLayer& layer = graph_.layers()[place.layer];
      float* base = statistics_memory_->floats();
      const size_t channels = layer.in.channels;
      statistics_[place.layer] = {.mean = base + place.mean, .variance = base + place.variance};
      buffers_.push_back({layer.name + ".running_mean", {base + place.mean, channels}});
      buffers_.push_back({layer.name + ".running_var", {base + place.variance, channels}});
    }
    return device_->Synchronize();  // the copy reads `initial`, which ends here
  }

  // The plan for a batch size, made at its first use. plans_ is ordered by last use, the most recent last.
  absl::StatusOr<std::shared_ptr<NetworkPlan>> PlanOf(NetworkPlan::Mode mode, int64_t batch) {
    // A linear search is enough for at most kNetworkPlansMax plans.
    const auto matches = [&](const auto& plan) { return plan->mode() == mode && plan->batch() == batch; };
    const auto found = std::find_if(plans_.begin(), plans_.end(), matches);
    if (found != plans_.end()) {
      std::rotate(found, found + 1, plans_.end());
      return plans_.back();
    }
    // A run has few batch sizes: full batches, the last of an epoch, and those of the evaluation. The memory of a
    // plan that is dropped is freed unless a captured graph shares it: see operations().
    if (plans_.size() >= kNetworkPlansMax) plans_.erase(plans_.begin());
    ASSIGN_OR_RETURN(auto plan,
                     NetworkPlan::Create({.file = &file_,
                                          .graph = &graph_,
                                          .program = mode == NetworkPlan::Mode::kTraining ? &training_ : &evaluation_,
                                          .mode = mode,
                                          .element = options_.element,
                                          .device = device_,
                                          .arena = static_cast<std::byte*>(arena_->data()),
                                          .statistics = statistics_,
                                          .seed = options_.seed},
                                         batch));
    plans_.push_back(std::move(plan));
    return plans_.back();
  }

  // The number of elements of the largest tensor.
  int64_t LargestTensor() const {
    int64_t largest = 0;
    for (const auto& tensor : graph_.layout().tensors()) largest = std::max(largest, tensor.range.size());
    return largest;
  }

  // For a batch without samples: its gradients join the sum of all ranks, so they must be zero, not the last step's.
  void ClearGradients(int layer, std::span<float> gradients) {
    // The zeros of the largest tensor are made at once: if they grew later, they would leave the memory from which
    // copies in flight still read.
    if (zeros_.empty()) zeros_.resize(LargestTensor(), 0);
    const GraphLayer& l = graph_.layers()[layer];
    for (int t = l.first_tensor; t < l.first_tensor + l.tensor_count; ++t) {
      const ElementRange range = graph_.layout().tensors()[t].range;
      // The zeros are copied, because a device has no call that fills memory.
      // Only the tensors are cleared, because the gaps between them are not overwritten in any step.
      device_->CopyToDevice(zeros_.data(), gradients.data() + range.begin,
                            range.size() * static_cast<int64_t>(sizeof(float)));
    }
  }

  const LayerFile file_;
  const NetworkGraph graph_;
  const NetworkProgram training_;
  const NetworkProgram evaluation_;
  NetworkOptions options_;
  Device* const device_;
  std::unique_ptr<DeviceBuffer> arena_;
  std::unique_ptr<DeviceBuffer> rounded_;  // the parameters, rounded; null with float32
  std::unique_ptr<DeviceBuffer> statistics_memory_;
  std::vector<RunningStatistics> statistics_;        // by layer
  std::vector<RunningStatistics> added_statistics_;  // by layer, in the memory of the last StatisticsIn
  std::vector<NetworkBuffer> buffers_;
  // Shared with the callers of operations().
  std::vector<std::shared_ptr<NetworkPlan>> plans_;
  std::shared_ptr<NetworkPlan> plan_;  // the last Forward's or Evaluate's; null after an empty batch
  ConstElements evaluated_images_;
  int64_t ready_batch_ = kNoBatch;                           // size of the batch whose Forward Backward may follow
  std::vector<float> zeros_;                                 // in host memory, for ClearGradients
  std::vector<const char*> forward_names_, backward_names_;  // of the spans, by layer; empty without a track
};

absl::StatusOr<std::unique_ptr<Network>> Network::Create(const LayerFile& file, const NetworkOptions& options,
                                                         Device* device) {
  CHECK_GE(options.batch_max, 1);
  ASSIGN_OR_RETURN(NetworkGraph graph, CreateGraph(file, options));
  auto impl = std::make_unique<Impl>(file, std::move(graph), options, device);
  RETURN_IF_ERROR(impl->Allocate());
  return std::unique_ptr<Network>(new Network(std::move(impl)));
}

// The size follows from the graph and its programs, so a GPU's memory can be planned before a network exists.
absl::StatusOr<NetworkSize> Network::SizeOf(const LayerFile& file, const NetworkOptions& options) {
  ASSIGN_OR_RETURN(const NetworkGraph graph, CreateGraph(file, options));
  return NetworkSize{.arena_bytes = ArenaBytes(options, BuildTrainingProgram(graph, options.element),
                                               BuildEvaluationProgram(graph, options.element)),
                     .element_count = graph.layout().element_count(),
                     .rounded_bytes = RoundedBytes(options, graph)};
}

Network::Network(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Network::~Network() = default;

LossKind Network::loss() const { return impl_->graph().loss().kind; }
int64_t Network::outputs() const { return impl_->graph().data().outputs; }
const Layout& Network::layout() const { return impl_->graph().layout(); }
int Network::layer_count() const { return static_cast<int>(impl_->graph().layers().size()); }
ElementRange Network::LayerRange(int layer) const { return impl_->graph().LayerRange(layer); }
std::vector<NetworkBuffer> Network::buffers() { return impl_->buffers(); }
absl::Status Network::ReadBuffer(const NetworkBuffer& buffer, std::span<float> values) {
  return impl_->ReadBuffer(buffer, values);
}
absl::Status Network::WriteBuffer(const NetworkBuffer& buffer, std::span<const float> values) {
  return impl_->WriteBuffer(buffer, values);
}
int64_t Network::statistics_size() const { return impl_->statistics_size(); }
void Network::UpdateStatistics(std::span<const double> added) { impl_->UpdateStatistics(added); }
int64_t Network::arena_bytes() const { return impl_->arena_bytes(); }

void Network::InitializeParameters(uint64_t seed, std::span<float> parameters) const {
  starring::InitializeParameters(impl_->graph(), seed, parameters);
}

absl::Status Network::Forward(const TrainStep& step, absl::FunctionRef<absl::Status(int layer)> before_layer) {
  return impl_->Forward(step, before_layer);
}
absl::Status Network::Backward(const TrainStep& step, absl::FunctionRef<absl::Status(int layer)> after_layer) {
  return impl_->Backward(step, after_layer);
}
absl::Status Network::PlanTraining(int64_t batch) { return impl_->PlanTraining(batch); }
absl::Status Network::PlanEvaluation(int64_t batch) { return impl_->PlanEvaluation(batch); }
absl::Status Network::ReadOutputs(std::span<float> outputs) { return impl_->ReadOutputs(outputs); }
LossResult Network::Result() { return impl_->Result(); }
std::shared_ptr<const void> Network::operations() const { return impl_->operations(); }
absl::Status Network::Evaluate(const NetworkInput& input, std::span<const float> parameters) {
  return impl_->Evaluate(input, parameters);
}

}  // namespace starring
