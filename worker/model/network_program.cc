#include "worker/model/network_program.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <variant>

#include "common/base/check.h"
#include "common/base/memory.h"

namespace starring {
namespace {

using Operation = Instruction::Operation;
constexpr int kNone = NetworkProgram::kNone;
constexpr int kImages = NetworkProgram::kImages;

// The mask of a ReLU is where its output is positive, so backward reads the output of a layer that ends with one.
bool HasRelu(const GraphLayer& layer) {
  return layer.kind == LayerKind::kRelu || layer.activation == Activation::kRelu;
}

// Convolution, dense and batch norm apply the mask of their ReLU inside their own backward. Relu and add layers have no
// backward operation that could, so their mask is an instruction: kMask, or part of kSumMask.
bool NeedsMaskInstruction(const GraphLayer& layer) {
  return layer.kind == LayerKind::kRelu || (layer.kind == LayerKind::kAdd && layer.activation == Activation::kRelu);
}

// Runs through the layers once as forward will, then in reverse as backward will, and emits the instructions. Each
// emitted instruction advances the time and extends the lives of the storages that it touches. Memory is planned last,
// when all lives are known.
class ProgramBuilder {
 public:
  enum class Mode { kTraining, kEvaluation };
  ProgramBuilder(const NetworkGraph& graph, Mode mode, Element element)
      : graph_(graph), mode_(mode), element_(element) {
    const int layer_count = static_cast<int>(graph.layers().size());
    outputs_.assign(layer_count, kNone);
    reader_counts_.assign(layer_count, 0);
    has_one_name_.assign(layer_count, false);
    gradients_.assign(layer_count, kNone);
    needs_gradient_.assign(layer_count, false);
    // The readers are counted before any instruction is emitted: whether a layer may overwrite its input depends on
    // layers that come after it.
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
  enum class Keeps { kNothing, kSigns, kValues };

  int OutputOf(int layer) const { return layer == GraphLayer::kImage ? kImages : outputs_[layer]; }
  bool NeedsGradient(int layer) const { return layer != GraphLayer::kImage && needs_gradient_[layer]; }

  int NewStorage(const SampleShape& shape, Element element) {
    program_.storages.push_back({.sample_elements = shape.elements(), .element = element});
    lives_.push_back({.size = shape.elements() * BytesOf(element), .first = time_, .last = time_});
    holders_.push_back(0);
    keeps_.push_back(Keeps::kNothing);
    return static_cast<int>(lives_.size()) - 1;
  }

  // Flattening changes only the shape: an image is contiguous in memory. Dropout does nothing in evaluation.
  bool IsIdentity(const GraphLayer& layer) const {
    return layer.kind == LayerKind::kFlatten || (layer.kind == LayerKind::kDropout && mode_ == Mode::kEvaluation);
  }

  // The element of layer l's output. The loss reads float32, which a dense layer can write.
  Element OutputElement(int l) const {
    int logits_layer = static_cast<int>(graph_.layers().size()) - 1;
    while (logits_layer != GraphLayer::kImage && IsIdentity(graph_.layers()[logits_layer])) {
      logits_layer = graph_.layers()[logits_layer].inputs[0];
    }
    if (l != logits_layer) return element_;
    const std::vector<OperationSpec>& operations = graph_.layers()[l].operations;
    return operations.size() == 1 && std::holds_alternative<DenseSpec>(operations[0]) ? Element::kFloat32 : element_;
  }

  Element ElementOf(int storage) const { return program_.storages[storage].element; }

  // Lives only grow. The negative numbers, kNone and kImages, are not in the arena.
  void Touch(int storage) {
    if (storage >= 0) lives_[storage].last = time_;
  }

  void Emit(std::vector<Instruction>* list, const Instruction& instruction) {
    for (const int storage : {instruction.x, instruction.x2, instruction.y, instruction.dy, instruction.dx})
      Touch(storage);
    list->push_back(instruction);
    ++time_;
  }

  // Notes what backward will read of a layer's output.
  void KeepOutput(const GraphLayer& layer, int storage) {
    if (storage < 0) return;
    if (HasRelu(layer)) keeps_[storage] = std::max(keeps_[storage], Keeps::kSigns);
    if (layer.backward_reads_output) keeps_[storage] = Keeps::kValues;
  }

  // Whether layer l may write to the storage of its input. Backward must still find what it reads there. A ReLU leaves
  // positive numbers positive. So does dropout with those that it keeps, and the gradient of a dropped one is 0
  // already.
  bool WorksInPlace(int l) const {
    const GraphLayer& layer = graph_.layers()[l];
    if (!layer.works_in_place || !IsSoleReader(l)) return false;
    const Keeps keeps = mode_ == Mode::kTraining ? keeps_[outputs_[layer.inputs[0]]] : Keeps::kNothing;
    return keeps == Keeps::kNothing || (keeps == Keeps::kSigns && layer.kind != LayerKind::kOperation);
  }

  // Whether no other layer reads the storage of layer l's input. The batch's images are the caller's memory and stay.
  // An input that another layer reads must stay too, even if that layer knows the same storage under another name:
  // after a flatten, two layers have the same output storage.
  bool IsSoleReader(int l) const {
    const int input = graph_.layers()[l].inputs[0];
    return input != GraphLayer::kImage && reader_counts_[input] == 1 && has_one_name_[input];
  }

  void BuildForward(int l) {
    const GraphLayer& layer = graph_.layers()[l];
    // A layer above all parameters needs no gradient and gets no backward.
    needs_gradient_[l] = layer.tensor_count > 0;
    for (const int input : layer.inputs) needs_gradient_[l] = needs_gradient_[l] || NeedsGradient(input);

    const int x = OutputOf(layer.inputs[0]);
    has_one_name_[l] = true;
    if (IsIdentity(layer)) {
      // No instruction. The storage now has two names; if the layer is the only reader, the first is not used again.
      outputs_[l] = x;
      has_one_name_[l] = IsSoleReader(l);
      return;
    }
    outputs_[l] = WorksInPlace(l) ? x : NewStorage(layer.out, OutputElement(l));
    KeepOutput(layer, outputs_[l]);
    if (layer.kind == LayerKind::kAdd) {
      Emit(&program_.forward[l],
           {.operation = Operation::kAdd, .layer = l, .x = x, .x2 = OutputOf(layer.inputs[1]), .y = outputs_[l]});
    } else {
      const int parts = std::max(1, static_cast<int>(layer.operations.size()));
      for (int part = 0; part < parts; ++part) {
        Emit(&program_.forward[l], {.operation = Operation::kForward,
                                    .layer = l,
                                    .part = part,
                                    .x = OutputOf(layer.inputs[part]),
                                    .y = outputs_[l]});
      }
    }
  }

  // The loss takes one unit of time of its own: it reads the logits and writes their gradient.
  void BuildLoss() {
    const GraphLayer& last = graph_.layers().back();
    program_.logits = outputs_.back();
    Touch(program_.logits);
    if (mode_ == Mode::kTraining && needs_gradient_.back()) {
      // The gradient replaces the logits unless something still reads them: backward, for the mask of a final ReLU, or
      // a layer that knows the same storage under another name.
      const bool in_place = program_.logits >= 0 && has_one_name_.back() && keeps_[program_.logits] == Keeps::kNothing;
      program_.dlogits = in_place ? program_.logits : NewStorage(last.out, Element::kFloat32);
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
    // A layer that needs a mask instruction and has several readers got its mask with their last sum (Contribute). The
    // other layers apply the mask inside their backward, which overwrites dy: if another tensor still holds dy, the
    // mask must be an instruction that writes elsewhere, or that tensor's gradient would be masked as well.
    const bool mask_here = NeedsMaskInstruction(layer) ? reader_counts_[l] < 2 : holders_[dy] > 1;
    if (HasRelu(layer) && mask_here) dy = EmitMask(l, y, dy, list);

    switch (layer.kind) {
      case LayerKind::kRelu:
      case LayerKind::kFlatten:
      case LayerKind::kAdd:
        PassOn(l, dy);
        return;
      default:
        break;
    }
    const int parts = std::max(1, static_cast<int>(layer.operations.size()));
    for (int part = 0; part < parts; ++part) EmitBackward({l, part, part + 1 == parts}, y, dy, list);
  }

  // Returns the storage of the masked gradient, which layer l now holds instead of `dy`.
  int EmitMask(int l, int y, int dy, std::vector<Instruction>* list) {
    const int masked = holders_[dy] > 1 ? NewStorage(graph_.layers()[l].out, ElementOf(dy)) : dy;
    Emit(list, {.operation = Operation::kMask, .layer = l, .y = y, .dy = dy, .dx = masked});
    if (masked != dy) {
      --holders_[dy];
      holders_[masked] = 1;
    }
    return masked;
  }

  struct Part {
    int layer, number;
    bool is_last;
  };
  void EmitBackward(const Part& part, int y, int dy, std::vector<Instruction>* list) {
    const int l = part.layer;
    const GraphLayer& layer = graph_.layers()[l];
    const int input = layer.inputs[part.number];
    const bool in_place = layer.works_in_place && holders_[dy] == 1;
    const bool needs_dx = NeedsGradient(input);
    int dx = kNone;
    // Batch norm's backward always writes dx, so that a first layer needs a storage for it too.
    if (needs_dx || layer.kind == LayerKind::kBatchNorm) {
      dx = in_place ? dy : NewStorage(needs_dx ? graph_.layers()[input].out : layer.in, element_);
    }
    Instruction instruction{.operation = Operation::kBackward, .layer = l, .part = part.number, .dy = dy, .dx = dx};
    // x and y are named only where backward reads them: a storage that is named stays alive until then.
    if (layer.backward_reads_input) instruction.x = OutputOf(input);
    if (layer.backward_reads_output || HasRelu(layer)) instruction.y = y;
    // A part that reads the image has nothing to do.
    if (needs_dx || layer.tensor_count > 0) Emit(list, instruction);
    // The last part is the last reader of the gradient of the layer's output.
    if (part.is_last) --holders_[dy];
    if (!needs_dx) return;
    ++holders_[dx];
    Contribute(l, input, dx);
  }

  // The gradient of the layer's output is the gradient of each input: no copy, but one holder for each input that needs
  // it, less the layer itself.
  void PassOn(int l, int dy) {
    const std::vector<int>& inputs = graph_.layers()[l].inputs;
    const auto needs = [this](int input) { return NeedsGradient(input); };
    holders_[dy] += static_cast<int>(std::count_if(inputs.begin(), inputs.end(), needs)) - 1;
    for (const int input : inputs) {
      if (needs(input)) Contribute(l, input, dy);
    }
  }

  // Adds `gradient` to the gradient of layer `input`'s output. The caller holds `gradient`, and its hold passes to that
  // tensor. The instruction belongs to layer l.
  void Contribute(int l, int input, int gradient) {
    int& sum = gradients_[input];
    const bool is_last = --gradients_to_come_[input] == 0;
    if (sum == kNone) {
      sum = gradient;
      return;
    }
    // The sum overwrites one of its parts, whichever no other tensor holds. Only if both are held does it need memory.
    int target = gradient;
    if (holders_[gradient] > 1) {
      target = holders_[sum] == 1 ? sum : NewStorage(graph_.layers()[input].out, ElementOf(sum));
    }
    Instruction instruction{.operation = Operation::kSum, .layer = l, .x = sum, .x2 = gradient, .dx = target};
    // The complete sum is masked in the same pass over memory. Masking an earlier sum would leave the parts that follow
    // unmasked.
    if (is_last && NeedsMaskInstruction(graph_.layers()[input])) {
      instruction.operation = Operation::kSumMask;
      instruction.y = outputs_[input];
    }
    Emit(&program_.backward[l], instruction);
    --holders_[sum];
    --holders_[gradient];
    ++holders_[target];
    sum = target;
  }

  // Offsets are multiples of a cache line for one sample, and so for every batch.
  void PlaceStorages() {
    const MemoryPlan plan = PlanMemory(lives_, kCacheLineBytes);
    for (size_t s = 0; s < lives_.size(); ++s) program_.storages[s].sample_offset_bytes = plan.offsets[s];
    program_.arena_sample_bytes = plan.size;
  }

  const NetworkGraph& graph_;
  const Mode mode_;
  const Element element_;
  NetworkProgram program_;
  int time_ = 0;
  // By storage.
  std::vector<BufferLife> lives_;
  std::vector<int> holders_;  // tensors whose gradient it is at this time
  std::vector<Keeps> keeps_;  // what backward reads of an output there
  // By layer.
  std::vector<int> outputs_;            // the storage of its output
  std::vector<int> reader_counts_;      // layers that read its output
  std::vector<bool> has_one_name_;      // the storage of its output is read as no other layer's output
  std::vector<int> gradients_;          // the storage of its output's gradient, as far as it has been summed
  std::vector<int> gradients_to_come_;  // readers that have not contributed to that sum
  std::vector<bool> needs_gradient_;    // the layer, or a layer that it depends on, has parameters to train
};

bool LiveTogether(const BufferLife& a, const BufferLife& b) { return a.first <= b.last && b.first <= a.last; }

}  // namespace

NetworkProgram BuildTrainingProgram(const NetworkGraph& graph, Element element) {
  return ProgramBuilder(graph, ProgramBuilder::Mode::kTraining, element).Build();
}

NetworkProgram BuildEvaluationProgram(const NetworkGraph& graph, Element element) {
  return ProgramBuilder(graph, ProgramBuilder::Mode::kEvaluation, element).Build();
}

MemoryPlan PlanMemory(std::span<const BufferLife> buffers, int64_t alignment) {
  CHECK_GE(alignment, 1);
  std::vector<int> by_size(buffers.size());
  std::iota(by_size.begin(), by_size.end(), 0);
  // Stable, so that equal sizes are placed in one order everywhere: the plan must not depend on the library's sort.
  std::stable_sort(by_size.begin(), by_size.end(), [&](int a, int b) { return buffers[a].size > buffers[b].size; });

  MemoryPlan plan;
  plan.offsets.assign(buffers.size(), 0);
  std::vector<int> placed;  // ascending by offset
  for (const int b : by_size) {
    CHECK_GE(buffers[b].size, 0);
    CHECK_LE(buffers[b].first, buffers[b].last);
    const int64_t size = RoundUp(buffers[b].size, alignment);
    int64_t offset = 0;
    // One pass from the lowest offset up. Buffers that never live together with b may overlap it, so they are passed
    // over; the first gap between the others that is large enough is taken.
    for (const int other : placed) {
      if (!LiveTogether(buffers[b], buffers[other])) continue;
      if (plan.offsets[other] >= offset + size) break;  // the gap below `other` is large enough
      offset = std::max(offset, plan.offsets[other] + RoundUp(buffers[other].size, alignment));
    }
    plan.offsets[b] = offset;
    plan.size = std::max(plan.size, offset + size);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), b,
                                   [&](int x, int y) { return plan.offsets[x] < plan.offsets[y]; }),
                  b);
  }
  return plan;
}

}  // namespace starring
