// A layer file made runnable: forward, loss and backward over one arena of device memory that is planned once.
//
// Parameters and gradients are flat vectors that follow `layout()`; layer l's tensors lie before layer l + 1's. So,
// once backward has finished layer l, every gradient element from LayerRange(l).begin on is final.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_MODEL_NETWORK_H_
#define STARRING_WORKER_MODEL_NETWORK_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/layout.h"
#include "kernels/device.h"

namespace starring {

class LayerFile;  // worker/model/layer_file.h

struct NetworkOptions {
  int64_t height = 0, width = 0, channels = 0, classes = 0;  // of the data set
  int64_t batch_max = 0;                                     // largest batch of this rank, training or evaluation
  uint64_t seed = 0;                                         // dropout
};

// One batch in device memory.
struct NetworkInput {
  const float* images = nullptr;  // (batch, height, width, channels)
  const int32_t* labels = nullptr;
  int64_t batch = 0;  // 0 is legal: a rank without samples in the last batch; its gradients are zero
};

// A tensor that is saved but not trained and not exchanged each step: batch norm's running mean and variance.
struct NetworkBuffer {
  std::string name;         // "bn1.running_mean"
  std::span<float> values;  // device memory of the network
};

class Network {
 public:
  static absl::StatusOr<std::unique_ptr<Network>> Create(const LayerFile& file, const NetworkOptions& options,
                                                         Device* device);
  ~Network();

  const Layout& layout() const;
  int layer_count() const;
  const std::string& layer_name(int layer) const;
  // The layer's tensors, alignment gaps included; empty for a layer without parameters.
  ElementRange LayerRange(int layer) const;
  std::vector<NetworkBuffer> buffers();
  int64_t arena_bytes() const;

  // PyTorch's default initialisers in distribution (kaiming_uniform(a = sqrt 5) for convolution and dense weights,
  // uniform
  // +-1/sqrt(fan_in) for biases, 1 and 0 for batch norm), drawn by Philox: (seed, kInit, tensor, element in PyTorch's
  // order).
  void InitializeParameters(uint64_t seed, std::span<float> parameters) const;

  struct TrainStep {
    NetworkInput input;
    int64_t step = 0;
    int64_t first_sample = 0;  // position of this rank's first sample in the global batch (dropout)
    float loss_scale = 1;      // 1 / samples in the global batch
    std::span<const float> parameters;
    std::span<float> gradients;  // overwritten, gaps untouched
  };
  // Calls before_layer(l) ahead of forward's first use of layer l's parameters, in ascending l, and stops with its
  // error.
  absl::Status Forward(const TrainStep& step, absl::FunctionRef<absl::Status(int layer)> before_layer);
  // After Forward. Calls after_layer(l), in descending l, when neither forward nor backward will touch layer l's
  // parameters or gradients again in this step.
  absl::Status Backward(const TrainStep& step, absl::FunctionRef<absl::Status(int layer)> after_layer);
  LossResult Result();  // of the last Forward or Evaluate

  // Evaluation: no dropout, running statistics.
  absl::Status Evaluate(const NetworkInput& input, std::span<const float> parameters);

 private:
  class Impl;
  explicit Network(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace starring

#endif  // STARRING_WORKER_MODEL_NETWORK_H_
