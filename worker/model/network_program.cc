#include "worker/model/network_program.h"

#include <algorithm>

#include "common/check.h"
#include "worker/model/memory_plan.h"

namespace starring {
namespace {

using Operation = Instruction::Operation;
constexpr int kNone = NetworkProgram::kNone;
constexpr int kImages = NetworkProgram::kImages;

// Whether backward reads the layer's output: for the mask of a ReLU.
bool BackwardReadsOutput(const GraphLayer& layer) {
  return layer.kind == LayerKind::kRelu || layer.activation == Activation::kRelu;
}

// Whether the mask of the layer's ReLU is an instruction of its own: no other one of its backward does it on the way.
bool MasksByItself(const GraphLayer& layer) {
  return layer.kind == LayerKind::kRelu || (layer.kind == LayerKind::kAdd && layer.activation == Activation::kRelu);
}

class ProgramBuilder {
 public:
  enum class Mode { kTraining, kEvaluation };
  ProgramBuilder(const NetworkGraph& graph, Mode mode) : graph_(graph), mode_(mode) {
    const int layer_count = static_cast<int>(graph.layers().size());
    outputs_.assign(layer_count, kNone);
    reader_counts_.assign(layer_count, 0);
    sole_.assign(layer_count, false);
    gradients_.assign(layer_count, kNone);
    needs_gradient_.assign(layer_count, false);
    for (const GraphLayer& layer : graph.layers()) {
      for (const int input : layer.inputs) {
        if (input != GraphLayer::kImage) ++reader_counts_[input];
      }
    }
    gradients_to_come_ = reader_counts_;
  }

  NetworkProgram Build() {
    const int layer_count = static_cast<int>(graph_.layers().size());
    program_.forward.resize(layer_count);
    program_.backward.resize(layer_count);
    for (int l = 0; l < layer_count; ++l) BuildForward(l);
    BuildLoss();
    if (mode_ == Mode::kTraining) {
      for (int l = layer_count - 1; l >= 0; --l) BuildBackward(l);
    }
    PlaceStorages();
    return std::move(program_);
  }

 private:
  int OutputOf(int layer) const { return layer == GraphLayer::kImage ? kImages : outputs_[layer]; }
  bool NeedsGradient(int layer) const { return layer != GraphLayer::kImage && needs_gradient_[layer]; }

  int NewStorage(const SampleShape& shape) {
    program_.storages.push_back({.sample_elements = shape.elements()});
    lives_.push_back({.size = shape.elements(), .first = time_, .last = time_});
    holders_.push_back(0);
    return static_cast<int>(lives_.size()) - 1;
  }

  void Touch(int storage) {
    if (storage >= 0) lives_[storage].last = time_;
  }

  void Emit(std::vector<Instruction>* list, const Instruction& instruction) {
    for (const int storage : {instruction.x, instruction.x2, instruction.y, instruction.dy, instruction.dx})
      Touch(storage);
    list->push_back(instruction);
    ++time_;
  }

  // Whether layer l may overwrite its input: it is in the arena and nobody else reads it, under this or another name.
  bool IsSoleReader(int l) const {
    const int input = graph_.layers()[l].inputs[0];
    return input != GraphLayer::kImage && reader_counts_[input] == 1 && sole_[input];
  }

  void BuildForward(int l) {
    const GraphLayer& layer = graph_.layers()[l];
    needs_gradient_[l] = layer.tensor_count > 0;
    for (const int input : layer.inputs) needs_gradient_[l] = needs_gradient_[l] || NeedsGradient(input);

    const int x = OutputOf(layer.inputs[0]);
    const bool is_identity =
        layer.kind == LayerKind::kFlatten || (layer.kind == LayerKind::kDropout && mode_ == Mode::kEvaluation);
    const bool may_alias = layer.kind == LayerKind::kRelu || layer.kind == LayerKind::kDropout;
    sole_[l] = true;
    if (is_identity) {
      outputs_[l] = x;
      sole_[l] = IsSoleReader(l);
      return;
    }
    outputs_[l] = may_alias && IsSoleReader(l) ? x : NewStorage(layer.out);
    if (layer.kind == LayerKind::kAdd) {
      Emit(&program_.forward[l],
           {.operation = Operation::kAdd, .layer = l, .x = x, .x2 = OutputOf(layer.inputs[1]), .y = outputs_[l]});
    } else {
      Emit(&program_.forward[l], {.operation = Operation::kForward, .layer = l, .x = x, .y = outputs_[l]});
    }
  }

  void BuildLoss() {
    const GraphLayer& last = graph_.layers().back();
    program_.logits = outputs_.back();
    Touch(program_.logits);
    if (mode_ == Mode::kTraining && needs_gradient_.back()) {
      // In place where backward does not want the logits any more.
      const bool alias = program_.logits >= 0 && sole_.back() && !BackwardReadsOutput(last);
      program_.dlogits = alias ? program_.logits : NewStorage(last.out);
      gradients_.back() = program_.dlogits;
      holders_[program_.dlogits] = 1;
    }
    ++time_;
  }

  void BuildBackward(int l) {
    if (!needs_gradient_[l]) return;
    const GraphLayer& layer = graph_.layers()[l];
    std::vector<Instruction>* list = &program_.backward[l];
    int dy = gradients_[l];
    CHECK_GE(dy, 0) << "layer " << layer.name << " has no reader";
    const int y = outputs_[l];
    // Of several readers the last has masked the sum (Contribute). A mask that backward does on the way writes to dy,
    // so a dy that somebody else holds is masked into a storage of its own before.
    const bool mask_here = MasksByItself(layer) ? reader_counts_[l] < 2 : holders_[dy] > 1;
    if (BackwardReadsOutput(layer) && mask_here) dy = EmitMask(l, y, dy, list);

    switch (layer.kind) {
      case LayerKind::kRelu:
      case LayerKind::kFlatten:
      case LayerKind::kAdd:
        PassOn(l, dy);
        return;
      default:
        EmitBackward(l, y, dy, list);
    }
  }

  // Returns the storage of the masked gradient; layer l holds it in place of `dy`.
  int EmitMask(int l, int y, int dy, std::vector<Instruction>* list) {
    const int masked = holders_[dy] > 1 ? NewStorage(graph_.layers()[l].out) : dy;
    Emit(list, {.operation = Operation::kMask, .layer = l, .y = y, .dy = dy, .dx = masked});
    if (masked != dy) {
      --holders_[dy];
      holders_[masked] = 1;
    }
    return masked;
  }

  void EmitBackward(int l, int y, int dy, std::vector<Instruction>* list) {
    const GraphLayer& layer = graph_.layers()[l];
    const int input = layer.inputs[0];
    const bool in_place = layer.kind == LayerKind::kDropout && holders_[dy] == 1;
    const bool needs_dx = NeedsGradient(input);
    int dx = kNone;
    // Batch norm always writes dx.
    if (needs_dx || layer.kind == LayerKind::kBatchNorm) dx = in_place ? dy : NewStorage(layer.in);
    Instruction instruction{.operation = Operation::kBackward, .layer = l, .dy = dy, .dx = dx};
    const bool reads_input =
        layer.kind == LayerKind::kConv2d || layer.kind == LayerKind::kDense || layer.kind == LayerKind::kBatchNorm;
    if (reads_input) instruction.x = OutputOf(input);
    if (BackwardReadsOutput(layer)) instruction.y = y;
    Emit(list, instruction);
    --holders_[dy];
    if (!needs_dx) return;
    ++holders_[dx];
    Contribute(l, input, dx);
  }

  // The layer's gradient is its inputs' gradient too: no copy, one more holder.
  void PassOn(int l, int dy) {
    const std::vector<int>& inputs = graph_.layers()[l].inputs;
    const auto needs = [this](int input) { return NeedsGradient(input); };
    holders_[dy] += static_cast<int>(std::count_if(inputs.begin(), inputs.end(), needs)) - 1;
    for (const int input : inputs) {
      if (needs(input)) Contribute(l, input, dy);
    }
  }

  // Adds a gradient that the caller holds (one hold goes over to the tensor) to that of layer `input`'s output. The
  // instruction belongs to layer l.
  void Contribute(int l, int input, int gradient) {
    int& sum = gradients_[input];
    const bool is_last = --gradients_to_come_[input] == 0;
    if (sum == kNone) {
      sum = gradient;
      return;
    }
    int target = gradient;
    if (holders_[gradient] > 1) target = holders_[sum] == 1 ? sum : NewStorage(graph_.layers()[input].out);
    Instruction instruction{.operation = Operation::kSum, .layer = l, .x = sum, .x2 = gradient, .dx = target};
    if (is_last && MasksByItself(graph_.layers()[input])) {
      instruction.operation = Operation::kSumMask;
      instruction.y = outputs_[input];
    }
    Emit(&program_.backward[l], instruction);
    --holders_[sum];
    --holders_[gradient];
    ++holders_[target];
    sum = target;
  }

  void PlaceStorages() {
    const MemoryPlan plan = PlanMemory(lives_, Layout::kAlignmentElements);
    for (size_t s = 0; s < lives_.size(); ++s) program_.storages[s].sample_offset = plan.offsets[s];
    program_.arena_sample_elements = plan.size;
  }

  const NetworkGraph& graph_;
  const Mode mode_;
  NetworkProgram program_;
  int time_ = 0;
  std::vector<BufferLife> lives_;       // of each storage
  std::vector<int> holders_;            // of each storage: tensors whose gradient it is, now
  std::vector<int> outputs_;            // of each layer: the storage of its output
  std::vector<int> reader_counts_;      // of each layer: layers that read its output
  std::vector<bool> sole_;              // of each layer: nobody reads its storage under another name
  std::vector<int> gradients_;          // of each layer: the storage of its output's gradient, so far
  std::vector<int> gradients_to_come_;  // of each layer: readers that have not contributed to it
  std::vector<bool> needs_gradient_;    // of each layer: something to train is there or below
};

}  // namespace

NetworkProgram BuildTrainingProgram(const NetworkGraph& graph) {
  return ProgramBuilder(graph, ProgramBuilder::Mode::kTraining).Build();
}

NetworkProgram BuildEvaluationProgram(const NetworkGraph& graph) {
  return ProgramBuilder(graph, ProgramBuilder::Mode::kEvaluation).Build();
}

}  // namespace starring
