// A network that can be run: forward, loss and backward over one arena of device memory that is planned once.
//
// Parameters and gradients are flat vectors that follow `layout()`, in which layer l's tensors come before those of
// layer l + 1. So, once backward has finished layer l, every gradient element from LayerRange(l).begin on is final.
//
// Each batch size has its own plan, made at its first use (for the largest size by Create). Making a plan allocates;
// running it does not. At most kNetworkPlansMax plans (common/base/limits.h) are kept; the least recently used one is
// dropped for a new one. All plans share the arena.
//
// Device operations are enqueued on a GPU, and finished when a call returns on a CPU. Result waits for them.
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
#include "common/job/layout.h"
#include "common/metrics/trace.h"
#include "kernels/device.h"

namespace starring {

class LayerFile;  // worker/model/layer_file.h

struct NetworkOptions {
  int64_t height = 0, width = 0, channels = 0, outputs = 0;  // the data set's
  int64_t batch_max = 0;                                     // largest batch of this rank in training
  int64_t evaluation_batch_max = 0;                          // largest batch of Evaluate; 0 means batch_max
  uint64_t seed = 0;                                         // for dropout
  Element element = Element::kFloat32;                       // of images, activations and their gradients
  TraceTrack* track = nullptr;  // the calling thread's; outlives the network; null without a trace
};

// One batch in device memory.
struct NetworkInput {
  ConstElements images;  // (batch, height, width, channels), of NetworkOptions::element
  LossTargets targets;   // of the model's loss
  int64_t batch = 0;     // 0 is legal: the last batch may have no samples for this rank, whose gradients are then zero
};

// A tensor that is saved, but neither trained nor exchanged in each step: batch norm's running mean and variance.
struct NetworkBuffer {
  std::string name;         // "bn1.running_mean", then "bn1.running_var": PyTorch's names and order
  std::span<float> values;  // the network's device memory; shape {channels}
};

// How large a network is. Known without a device.
struct NetworkSize {
  int64_t arena_bytes = 0;    // device memory for activations and their gradients
  int64_t element_count = 0;  // length of the parameter vector
  int64_t rounded_bytes = 0;  // device memory for a copy of it, in elements other than float32
};

class Network {
 public:
  // Fails as Create does if the layer file and the data set's shape do not fit together.
  static absl::StatusOr<NetworkSize> SizeOf(const LayerFile& file, const NetworkOptions& options);
  // InvalidArgument with file, line, layer and reason if the layer file and the data set's shape do not fit together
  // (network_graph.h), or the device lacks an operation. ResourceExhausted if the arena does not fit.
  // `device` outlives the network. REQUIRES: batch_max >= 1.
  static absl::StatusOr<std::unique_ptr<Network>> Create(const LayerFile& file, const NetworkOptions& options,
                                                         Device* device);
  ~Network();

  const Layout& layout() const;
  LossKind loss() const;
  int64_t outputs() const;  // of a sample
  int layer_count() const;
  // The elements of the layer's tensors, alignment gaps included; empty for a layer without parameters.
  ElementRange LayerRange(int layer) const;
  std::vector<NetworkBuffer> buffers();
  // Copy one of buffers() to or from host memory, and wait until that is done.
  absl::Status ReadBuffer(const NetworkBuffer& buffer, std::span<float> values);
  absl::Status WriteBuffer(const NetworkBuffer& buffer, std::span<const float> values);
  // The values of all buffers().
  int64_t statistics_size() const;
  // For every value of buffers(): running = (1 - momentum) * running + added. REQUIRES: as for added_statistics.
  void UpdateStatistics(std::span<const double> added);
  int64_t arena_bytes() const;

  // Writes the first values to host memory: InitializeParameters of network_graph.h.
  void InitializeParameters(uint64_t seed, std::span<float> parameters) const;

  // One step of training. All memory is the device's; images are 64-byte aligned. REQUIRES: input.batch <= batch_max;
  // parameters and gradients have layout().element_count() elements.
  struct TrainStep {
    NetworkInput input;
    int64_t step = 0;
    int64_t first_sample = 0;  // position of this rank's first sample in the global batch (dropout)
    float loss_scale = 1;      // 1 / samples in the global batch
    std::span<const float> parameters;
    std::span<float> gradients;  // overwritten, gaps untouched
    // kByLayer: a layer's parameters are there when before_layer has returned for it; kBefore: all are there before
    // Forward, which then rounds them at once.
    enum class Parameters { kByLayer, kBefore };
    Parameters arrive = Parameters::kByLayer;
    // Empty: batch norm updates its running statistics. Otherwise they stay, and this takes what the batch would add to
    // them: momentum * mean and momentum * variance (0 for a single value, which has none) of every channel, in the
    // order of buffers(). REQUIRES: statistics_size() values; a device whose memory is the host's.
    std::span<float> added_statistics = {};
  };
  // Calls before_layer(l) for every layer, in ascending l, before forward first uses layer l's parameters, and stops
  // with its error.
  absl::Status Forward(const TrainStep& step, absl::FunctionRef<absl::Status(int layer)> before_layer);
  // After Forward of the same step. Calls after_layer(l) for every layer, in descending l, when neither forward nor
  // backward will touch layer l's parameters or gradients again in this step, and stops with its error.
  absl::Status Backward(const TrainStep& step, absl::FunctionRef<absl::Status(int layer)> after_layer);
  LossResult Result();  // of the last Forward or Evaluate
  // Copies the outputs of the last Evaluate, before any softmax, to host memory: (batch, outputs). REQUIRES: its batch
  // has samples, and as many values.
  absl::Status ReadOutputs(std::span<float> outputs);
  // Owns the operations that the last Forward or Evaluate ran, and their device memory; null after an empty batch.
  // A captured graph writes to that memory in every launch, without the network's knowledge. The graph's owner must
  // keep this pointer as long as the graph, or another batch size could be given the same memory.
  std::shared_ptr<const void> operations() const;

  // Makes the plan for a batch size now instead of at its first use, so that the next step of that size allocates
  // nothing; the capture of a graph depends on it. REQUIRES: 1 <= batch <= batch_max, or evaluation_batch_max.
  absl::Status PlanTraining(int64_t batch);
  absl::Status PlanEvaluation(int64_t batch);

  // Computes the loss without dropout and with the running statistics. Not between Forward and Backward of a step.
  // REQUIRES: input.batch <= evaluation_batch_max.
  absl::Status Evaluate(const NetworkInput& input, std::span<const float> parameters);

 private:
  class Impl;
  explicit Network(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace starring

#endif  // STARRING_WORKER_MODEL_NETWORK_H_
