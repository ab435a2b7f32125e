#include "worker/model/network_plan.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "common/base/check.h"
#include "common/base/status.h"

namespace starring {
namespace {

// Where a layer's tensors begin in a vector of parameters or gradients.
struct LayerTensors {
  std::optional<int64_t> first;   // weight, gamma
  std::optional<int64_t> second;  // bias, beta

  // In `vector`; null for a tensor that the layer does not have. T is float or const float.
  template <typename T>
  T* FirstIn(T* vector) const {
    return first.has_value() ? vector + *first : nullptr;
  }
  template <typename T>
  T* SecondIn(T* vector) const {
    return second.has_value() ? vector + *second : nullptr;
  }
};

LayerTensors TensorsOf(const NetworkGraph& graph, int layer) {
  const GraphLayer& l = graph.layers()[layer];
  const std::vector<Tensor>& tensors = graph.layout().tensors();
  LayerTensors found;
  // A layer's tensors follow each other in the layout: the weight first, as worker/model/layer_table.cc adds them.
  if (l.tensor_count > 0) found.first = tensors[l.first_tensor].range.begin;
  if (l.tensor_count > 1) found.second = tensors[l.first_tensor + 1].range.begin;
  return found;
}

// The device has a factory for each kind of operation; the plan keeps all kinds in one variant.
template <typename Variant, typename T>
absl::StatusOr<Variant> ToVariant(absl::StatusOr<std::unique_ptr<T>> operation) {
  if (!operation.ok()) return operation.status();
  return Variant(*std::move(operation));
}

}  // namespace

absl::StatusOr<std::unique_ptr<NetworkPlan>> NetworkPlan::Create(const Parts& parts, int64_t batch) {
  CHECK_GE(batch, 1);
  std::unique_ptr<NetworkPlan> plan(new NetworkPlan(parts, batch));
  const int layer_count = static_cast<int>(parts.graph->layers().size());
  RETURN_IF_ERROR(plan->CheckLogits());
  // Everything is allocated here, so that a step allocates nothing.
  for (int l = 0; l < layer_count; ++l) {
    absl::StatusOr<Prepared> operation = plan->Prepare(l);
    // A refused shape is a mistake in the layer file and is reported at its line. Other errors, for instance too little
    // memory, are not.
    if (operation.status().code() == absl::StatusCode::kInvalidArgument) {
      return parts.file->LayerError(parts.graph->layers()[l].number, "", operation.status().message());
    }
    RETURN_IF_ERROR(operation.status(), "layer ", parts.graph->layers()[l].name);
    plan->prepared_.push_back(*std::move(operation));
  }
  // Plans for evaluation have the same loss, so that test losses compare with training losses.
  ASSIGN_OR_RETURN(plan->loss_, parts.device->CreateLoss({.kind = parts.graph->loss().kind,
                                                          .batch = batch,
                                                          .outputs = parts.graph->data().outputs,
                                                          .label_smoothing = parts.graph->loss().label_smoothing}));
  return plan;
}

// The loss reads float32, and of all operations a dense layer alone can write what it has not read.
absl::Status NetworkPlan::CheckLogits() const {
  const int logits = parts_.program->logits;
  const Element element = logits < 0 ? parts_.element : parts_.program->storages[logits].element;
  if (element == Element::kFloat32) return absl::OkStatus();
  return parts_.file->LayerError(parts_.graph->layers().back().number, "",
                                 "the last layer must be dense, without an activation of its own, where activations "
                                 "are stored in bfloat16: use --math=tf32");
}

// Whether the layer's backward computes the gradient of its input. The first layer with parameters does not need one,
// and in many networks that gradient would be the largest of all.
InputGradient NetworkPlan::InputGradientOf(int layer) const {
  for (const Instruction& instruction : parts_.program->backward[layer]) {
    const bool is_own = instruction.operation == Instruction::Operation::kBackward;
    if (is_own && instruction.dx != NetworkProgram::kNone) return InputGradient::kNeeded;
  }
  return InputGradient::kNotNeeded;
}

absl::StatusOr<NetworkPlan::Prepared> NetworkPlan::Prepare(int layer) const {
  const GraphLayer& l = parts_.graph->layers()[layer];
  Device* device = parts_.device;
  switch (l.kind) {
    case LayerKind::kOperation:
      return PrepareOperations(layer);
    case LayerKind::kBatchNorm:
      return ToVariant<Prepared>(device->CreateBatchNorm({.batch = batch_,
                                                          .height = l.in.height,
                                                          .width = l.in.width,
                                                          .channels = l.in.channels,
                                                          .activation = l.activation,
                                                          .epsilon = l.epsilon,
                                                          .momentum = l.momentum,
                                                          .element = parts_.element}));
    case LayerKind::kDropout:
      return ToVariant<Prepared>(device->CreateDropout({.batch = batch_,
                                                        .sample_elements = l.in.elements(),
                                                        .rate = l.rate,
                                                        .seed = parts_.seed,
                                                        // From one seed, every layer draws other numbers.
                                                        .stream = static_cast<uint32_t>(l.number),
                                                        .element = parts_.element}));
    case LayerKind::kRelu:
    case LayerKind::kAdd:
    case LayerKind::kFlatten:
      break;
  }
  return Prepared();
}

absl::StatusOr<NetworkPlan::Prepared> NetworkPlan::PrepareOperations(int layer) const {
  Operations operations;
  for (OperationSpec spec : parts_.graph->layers()[layer].operations) {
    std::visit(
        [&](auto& s) {
          s.batch = batch_;
          s.element = parts_.element;
          // Only specs of operations that can save the input gradient have the field.
          if constexpr (requires { s.input_gradient; }) s.input_gradient = InputGradientOf(layer);
          if constexpr (requires { s.output; }) {
            s.output = parts_.program->storages[parts_.program->forward[layer].back().y].element;
          }
        },
        spec);
    ASSIGN_OR_RETURN(operations.emplace_back(), parts_.device->CreateOperation(spec));
  }
  return Prepared(std::move(operations));
}

// Offsets are per sample, so a smaller batch uses a shorter part of the arena.
Elements NetworkPlan::At(int storage) const {
  if (storage < 0) return {};
  const NetworkProgram::Storage& s = parts_.program->storages[storage];
  return {s.element, parts_.arena + batch_ * s.sample_offset_bytes};
}

ConstElements NetworkPlan::In(int storage, const Pointers& pointers) const {
  return storage == NetworkProgram::kImages ? pointers.images : ConstElements(At(storage));
}

bool NetworkPlan::ReadsRounded(const GraphLayer& layer) {
  return !layer.operations.empty() && (std::holds_alternative<Conv2dSpec>(layer.operations[0]) ||
                                       std::holds_alternative<DenseSpec>(layer.operations[0]));
}

NetworkPlan::Weights NetworkPlan::WeightsOf(int layer, const Pointers& pointers, Element output) const {
  const LayerTensors tensors = TensorsOf(*parts_.graph, layer);
  Weights floats = {tensors.FirstIn(pointers.parameters), tensors.SecondIn(pointers.parameters)};
  if (pointers.rounded_parameters.is_null() || !ReadsRounded(parts_.graph->layers()[layer])) return floats;
  const auto rounded = [&](const std::optional<int64_t>& begin) {
    return begin.has_value() ? pointers.rounded_parameters.From(*begin) : ConstElements();
  };
  // A bias has the elements of the output that it is added to.
  return {rounded(tensors.first), output == Element::kFloat32 ? floats.bias : rounded(tensors.second)};
}

int64_t NetworkPlan::CountOf(int storage) const { return batch_ * parts_.program->storages[storage].sample_elements; }

void NetworkPlan::RunForward(int layer, const Pointers& pointers) {
  for (const Instruction& instruction : parts_.program->forward[layer]) {
    if (instruction.operation == Instruction::Operation::kAdd) {
      parts_.device->Add(In(instruction.x, pointers), In(instruction.x2, pointers),
                         parts_.graph->layers()[layer].activation, At(instruction.y), CountOf(instruction.y));
    } else {
      Forward(instruction, pointers);
    }
  }
}

void NetworkPlan::RunLoss(const Pointers& pointers) {
  // In evaluation `dlogits` is kNone and At returns null: the loss then writes no gradient.
  loss_->Run(Logits(pointers), pointers.targets, pointers.loss_scale, At(parts_.program->dlogits).floats());
}

void NetworkPlan::RunBackward(int layer, const Pointers& pointers) {
  for (const Instruction& instruction : parts_.program->backward[layer]) {
    switch (instruction.operation) {
      // ReLU and add have no operation of their own: the device does these three in one call each.
      case Instruction::Operation::kMask:
        parts_.device->ReluBackward(At(instruction.y), At(instruction.dy), At(instruction.dx), CountOf(instruction.dy));
        break;
      case Instruction::Operation::kSum:
        parts_.device->Add(At(instruction.x), At(instruction.x2), Activation::kNone, At(instruction.dx),
                           CountOf(instruction.dx));
        break;
      case Instruction::Operation::kSumMask:
        parts_.device->AddReluBackward(At(instruction.y), At(instruction.x), At(instruction.x2), At(instruction.dx),
                                       CountOf(instruction.dx));
        break;
      default:
        Backward(instruction, pointers);
    }
  }
}

void NetworkPlan::Forward(const Instruction& instruction, const Pointers& pointers) {
  const int layer = instruction.layer;
  const ConstElements x = In(instruction.x, pointers);
  const Elements y = At(instruction.y);
  const auto [weight, bias] = WeightsOf(layer, pointers, y.element());
  const RunningStatistics& running = (pointers.statistics.empty() ? parts_.statistics : pointers.statistics)[layer];
  Prepared& prepared = prepared_[layer];
  switch (parts_.graph->layers()[layer].kind) {
    case LayerKind::kOperation:
      return std::get<Operations>(prepared)[instruction.part]->Forward(x, weight, bias, y);
    case LayerKind::kBatchNorm: {
      BatchNorm& norm = *std::get<std::unique_ptr<BatchNorm>>(prepared);
      // Training normalises by the batch's own statistics and updates the running ones, which evaluation reads.
      const float* const gamma = weight.floats();
      const float* const beta = bias.floats();
      if (parts_.mode == Mode::kTraining) return norm.Forward(x, gamma, beta, running.mean, running.variance, y);
      return norm.Infer(x, gamma, beta, running.mean, running.variance, y);
    }
    case LayerKind::kDropout:
      return std::get<std::unique_ptr<Dropout>>(prepared)->Forward(x, pointers.step, pointers.first_sample, y);
    case LayerKind::kRelu:
      return parts_.device->Relu(x, y, CountOf(instruction.y));
    case LayerKind::kAdd:
    case LayerKind::kFlatten:
      break;
  }
  // Add and flatten have no kForward instruction: RunForward adds, and a flatten is no instruction at all.
  CHECK(false) << "layer " << layer << " has no forward operation";
}

void NetworkPlan::Backward(const Instruction& instruction, const Pointers& pointers) {
  const int layer = instruction.layer;
  const ConstElements x = In(instruction.x, pointers);
  const ConstElements y = At(instruction.y);
  const Elements dy = At(instruction.dy);
  const Elements dx = At(instruction.dx);
  // No backward reads the bias: the gradient of a sum does not depend on its terms.
  const ConstElements weight = WeightsOf(layer, pointers, dy.element()).weight;
  const LayerTensors tensors = TensorsOf(*parts_.graph, layer);
  float* const dweight = tensors.FirstIn(pointers.gradients);
  float* const dbias = tensors.SecondIn(pointers.gradients);
  Prepared& prepared = prepared_[layer];
  switch (parts_.graph->layers()[layer].kind) {
    case LayerKind::kOperation:
      return std::get<Operations>(prepared)[instruction.part]->Backward(x, weight, y, dy, dx, dweight, dbias);
    case LayerKind::kBatchNorm:
      return std::get<std::unique_ptr<BatchNorm>>(prepared)->Backward(x, weight.floats(), y, dy, dx, dweight, dbias);
    case LayerKind::kDropout:
      return std::get<std::unique_ptr<Dropout>>(prepared)->Backward(dy, dx);
    case LayerKind::kRelu:
    case LayerKind::kAdd:
    case LayerKind::kFlatten:
      break;
  }
  // These three pass gradients on: the program emits kMask, kSum and kSumMask for them, which RunBackward handles.
  CHECK(false) << "layer " << layer << " has no backward operation";
}

}  // namespace starring
