#include "worker/model/network_plan.h"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <variant>

#include "common/base/check.h"
#include "common/base/status.h"

namespace starring {
namespace {

// Where a layer's tensors begin in a vector of parameters or gradients. T is float or const float.
template <typename T>
struct LayerTensors {
  T* first = nullptr;   // weight, gamma
  T* second = nullptr;  // bias, beta
};

template <typename T>
LayerTensors<T> TensorsOf(const NetworkGraph& graph, int layer, T* vector) {
  const GraphLayer& l = graph.layers()[layer];
  const std::vector<Tensor>& tensors = graph.layout().tensors();
  LayerTensors<T> found;
  // A tensor that the layer does not have stays null.
  // A layer's tensors follow each other in the layout: the weight first, as worker/model/layer_table.cc adds them.
  if (l.tensor_count > 0) found.first = vector + tensors[l.first_tensor].range.begin;
  if (l.tensor_count > 1) found.second = vector + tensors[l.first_tensor + 1].range.begin;
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
    case LayerKind::kOperation: {
      Operations operations;
      for (OperationSpec spec : l.operations) {
        std::visit(
            [&](auto& s) {
              s.batch = batch_;
              // Only specs of operations that can save the input gradient have the field.
              if constexpr (requires { s.input_gradient; }) s.input_gradient = InputGradientOf(layer);
            },
            spec);
        ASSIGN_OR_RETURN(operations.emplace_back(), device->CreateOperation(spec));
      }
      return Prepared(std::move(operations));
    }
    case LayerKind::kBatchNorm:
      return ToVariant<Prepared>(device->CreateBatchNorm({.batch = batch_,
                                                          .height = l.in.height,
                                                          .width = l.in.width,
                                                          .channels = l.in.channels,
                                                          .activation = l.activation,
                                                          .epsilon = l.epsilon,
                                                          .momentum = l.momentum}));
    case LayerKind::kDropout:
      return ToVariant<Prepared>(device->CreateDropout({.batch = batch_,
                                                        .sample_elements = l.in.elements(),
                                                        .rate = l.rate,
                                                        .seed = parts_.seed,
                                                        // From one seed, every layer draws other numbers.
                                                        .stream = static_cast<uint32_t>(l.number)}));
    case LayerKind::kRelu:
    case LayerKind::kAdd:
    case LayerKind::kFlatten:
      break;
  }
  return Prepared();
}

// Offsets are per sample, so a smaller batch uses a shorter part of the arena.
float* NetworkPlan::At(int storage) const {
  if (storage < 0) return nullptr;
  return parts_.arena + batch_ * parts_.program->storages[storage].sample_offset;
}

const float* NetworkPlan::In(int storage, const Pointers& pointers) const {
  return storage == NetworkProgram::kImages ? pointers.images : At(storage);
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
  loss_->Run(In(parts_.program->logits, pointers), pointers.targets, pointers.loss_scale, At(parts_.program->dlogits));
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
  const float* x = In(instruction.x, pointers);
  float* y = At(instruction.y);
  const auto [weight, bias] = TensorsOf(*parts_.graph, layer, pointers.parameters);
  const RunningStatistics& running = (pointers.statistics.empty() ? parts_.statistics : pointers.statistics)[layer];
  Prepared& prepared = prepared_[layer];
  switch (parts_.graph->layers()[layer].kind) {
    case LayerKind::kOperation:
      return std::get<Operations>(prepared)[instruction.part]->Forward(x, weight, bias, y);
    case LayerKind::kBatchNorm: {
      BatchNorm& norm = *std::get<std::unique_ptr<BatchNorm>>(prepared);
      // Training normalises by the batch's own statistics and updates the running ones, which evaluation reads.
      if (parts_.mode == Mode::kTraining) return norm.Forward(x, weight, bias, running.mean, running.variance, y);
      return norm.Infer(x, weight, bias, running.mean, running.variance, y);
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
  const float* x = In(instruction.x, pointers);
  const float* y = At(instruction.y);
  float* dy = At(instruction.dy);
  float* dx = At(instruction.dx);
  // No backward reads the bias: the gradient of a sum does not depend on its terms.
  const float* weight = TensorsOf(*parts_.graph, layer, pointers.parameters).first;
  const auto [dweight, dbias] = TensorsOf(*parts_.graph, layer, pointers.gradients);
  Prepared& prepared = prepared_[layer];
  switch (parts_.graph->layers()[layer].kind) {
    case LayerKind::kOperation:
      return std::get<Operations>(prepared)[instruction.part]->Backward(x, weight, y, dy, dx, dweight, dbias);
    case LayerKind::kBatchNorm:
      return std::get<std::unique_ptr<BatchNorm>>(prepared)->Backward(x, weight, y, dy, dx, dweight, dbias);
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
