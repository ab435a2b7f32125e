// A program bound to a device, a batch size and an arena: the operations exist, every pointer is known.
//
// Running it allocates nothing. Plans share the arena, so running one destroys what another left there.
// Thread safety: one thread.
#ifndef STARRING_WORKER_MODEL_NETWORK_PLAN_H_
#define STARRING_WORKER_MODEL_NETWORK_PLAN_H_

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

// The running statistics of a batch norm layer, in device memory.
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
    const NetworkProgram* program = nullptr;  // of `mode`
    Mode mode = Mode::kTraining;
    Device* device = nullptr;
    float* arena = nullptr;                         // batch * program->arena_sample_elements floats
    std::span<const RunningStatistics> statistics;  // of each layer
    uint64_t seed = 0;                              // dropout
  };
  // What differs from step to step. `gradients` is null in evaluation.
  struct Pointers {
    const float* images = nullptr;
    const int32_t* labels = nullptr;
    const float* parameters = nullptr;
    float* gradients = nullptr;
    int64_t step = 0;
    int64_t first_sample = 0;
    float loss_scale = 1;
  };

  // The device's error, with the place of the layer that it is about. REQUIRES: batch >= 1.
  static absl::StatusOr<std::unique_ptr<NetworkPlan>> Create(const Parts& parts, int64_t batch);

  int64_t batch() const { return batch_; }
  Mode mode() const { return parts_.mode; }

  void RunForward(int layer, const Pointers& pointers);
  void RunLoss(const Pointers& pointers);
  void RunBackward(int layer, const Pointers& pointers);
  LossResult Result() { return loss_->Result(); }

 private:
  // A layer's operation; none for relu, add and flatten, which need no preparation.
  using LayerOperation =
      std::variant<std::monostate, std::unique_ptr<Conv2d>, std::unique_ptr<Dense>, std::unique_ptr<MaxPool2d>,
                   std::unique_ptr<GlobalAveragePool>, std::unique_ptr<BatchNorm>, std::unique_ptr<Dropout>>;

  NetworkPlan(const Parts& parts, int64_t batch) : parts_(parts), batch_(batch) {}
  absl::StatusOr<LayerOperation> CreateOperation(int layer) const;
  InputGradient InputGradientOf(int layer) const;
  // Null for kNone.
  float* At(int storage) const;
  const float* In(int storage, const Pointers& pointers) const;
  int64_t CountOf(int storage) const;
  void Forward(const Instruction& instruction, const Pointers& pointers);
  void Backward(const Instruction& instruction, const Pointers& pointers);

  const Parts parts_;
  const int64_t batch_;
  std::vector<LayerOperation> operations_;  // of each layer
  std::unique_ptr<SoftmaxCrossEntropy> loss_;
};

}  // namespace starring

#endif  // STARRING_WORKER_MODEL_NETWORK_PLAN_H_
