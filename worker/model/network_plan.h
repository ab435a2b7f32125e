// A program bound to a device, a batch size and an arena: its operations exist, and every pointer is known.
//
// Running a plan allocates nothing. Plans share the arena, so running one overwrites what another has left there.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_MODEL_NETWORK_PLAN_H_
#define STARRING_WORKER_MODEL_NETWORK_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "worker/model/layer_file.h"
#include "worker/model/network_graph.h"
#include "worker/model/network_program.h"

namespace starring {

// A batch norm layer's running statistics, in device memory.
struct RunningStatistics {
  float* mean = nullptr;
  float* variance = nullptr;
};

class NetworkPlan {
 public:
  enum class Mode { kTraining, kEvaluation };
  // Everything outlives the plan.
  struct Parts {
    const LayerFile* file = nullptr;  // for messages
    const NetworkGraph* graph = nullptr;
    const NetworkProgram* program = nullptr;  // for `mode`
    Mode mode = Mode::kTraining;
    Element element = Element::kFloat32;  // of images, and of the program
    Device* device = nullptr;
    std::byte* arena = nullptr;                     // batch * program->arena_sample_bytes
    std::span<const RunningStatistics> statistics;  // by layer
    uint64_t seed = 0;                              // for dropout
  };
  // The arguments that differ from step to step. `gradients` is null in evaluation.
  struct Pointers {
    ConstElements images;
    LossTargets targets;
    const float* parameters = nullptr;
    // Parameters as dense layers and convolutions read them, where these have other elements than float32: a rounded
    // copy of the vector. Otherwise null.
    ConstElements rounded_parameters;
    float* gradients = nullptr;
    int64_t step = 0;
    int64_t first_sample = 0;
    float loss_scale = 1;
    std::span<const RunningStatistics> statistics;  // by layer: what training updates; empty: Parts::statistics
  };

  // Fails with the device's error, and the position of the layer that it concerns. REQUIRES: batch >= 1.
  static absl::StatusOr<std::unique_ptr<NetworkPlan>> Create(const Parts& parts, int64_t batch);

  // Whether the layer reads Pointers::rounded_parameters.
  static bool ReadsRounded(const GraphLayer& layer);

  int64_t batch() const { return batch_; }
  Mode mode() const { return parts_.mode; }

  void RunForward(int layer, const Pointers& pointers);
  void RunLoss(const Pointers& pointers);
  void RunBackward(int layer, const Pointers& pointers);
  LossResult Result() { return loss_->Result(); }
  const float* Logits(const Pointers& pointers) const { return In(parts_.program->logits, pointers).floats(); }

 private:
  // A layer's operation. Relu, add and flatten have none: they are calls of the device that need no preparation.
  using Operations = std::vector<std::unique_ptr<LayerOperation>>;
  using Prepared = std::variant<std::monostate, Operations, std::unique_ptr<BatchNorm>, std::unique_ptr<Dropout>>;

  NetworkPlan(const Parts& parts, int64_t batch) : parts_(parts), batch_(batch) {}
  absl::Status CheckLogits() const;
  absl::StatusOr<Prepared> Prepare(int layer) const;
  absl::StatusOr<Prepared> PrepareOperations(int layer) const;
  InputGradient InputGradientOf(int layer) const;
  // Where a storage is for this batch size; null for kNone.
  Elements At(int storage) const;
  // As At, and the batch's images for kImages.
  ConstElements In(int storage, const Pointers& pointers) const;
  // A layer's weight and bias, as its forward reads them.
  struct Weights {
    ConstElements weight, bias;
  };
  Weights WeightsOf(int layer, const Pointers& pointers, Element output) const;
  int64_t CountOf(int storage) const;
  void Forward(const Instruction& instruction, const Pointers& pointers);
  void Backward(const Instruction& instruction, const Pointers& pointers);

  const Parts parts_;
  const int64_t batch_;
  std::vector<Prepared> prepared_;  // by layer
  std::unique_ptr<Loss> loss_;
};

}  // namespace starring

#endif  // STARRING_WORKER_MODEL_NETWORK_PLAN_H_
