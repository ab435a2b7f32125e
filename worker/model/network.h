// A layer file made runnable: forward, loss and backward over one arena of device memory that is planned once.
//
// Parameters and gradients are flat vectors that follow `layout()`; layer l's tensors lie before layer l + 1's. So,
// once backward has finished layer l, every gradient element from LayerRange(l).begin on is final.
//
// Each batch size has a plan of its own, made at its first use (the largest: by Create): that step allocates, later
// ones do not. At most limits.h kNetworkPlansMax plans are kept, the one that was not used for longest goes. All share
// the arena.
//
// Device operations are enqueued; on the CPU they are done when a call returns. Result waits.
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
#include "common/trace.h"
#include "kernels/device.h"

namespace starring {

class LayerFile;  // worker/model/layer_file.h

struct NetworkOptions {
  int64_t height = 0, width = 0, channels = 0, classes = 0;  // of the data set
  int64_t batch_max = 0;                                     // largest batch of this rank in training
  int64_t evaluation_batch_max = 0;                          // likewise in Evaluate; 0: as batch_max
  uint64_t seed = 0;                                         // dropout
  TraceTrack* track = nullptr;  // of the thread that calls; outlives the network; null: there is no trace
};

// One batch in device memory.
struct NetworkInput {
  const float* images = nullptr;  // (batch, height, width, channels)
  const int32_t* labels = nullptr;
  int64_t batch = 0;  // 0 is legal: a rank without samples in the last batch; its gradients are zero
};

// A tensor that is saved but not trained and not exchanged each step: batch norm's running mean and variance.
struct NetworkBuffer {
  std::string name;         // "bn1.running_mean", then "bn1.running_var": PyTorch's names and order
  std::span<float> values;  // device memory of the network; shape {channels}
};

// What a network takes: known without a device.
struct NetworkSize {
  int64_t arena_bytes = 0;    // device memory of activations and their gradients
  int64_t element_count = 0;  // of the parameter vector
};

class Network {
 public:
  // Fails as Create does where the layer file and the data set's shape do not go together.
  static absl::StatusOr<NetworkSize> SizeOf(const LayerFile& file, const NetworkOptions& options);
  // InvalidArgument with file, line, layer and reason where the layer file and the data set's shape do not go together
  // (see network_graph.h), or the device has no such operation. ResourceExhausted when the arena does not fit.
  // `device` outlives the network. REQUIRES: batch_max >= 1.
  static absl::StatusOr<std::unique_ptr<Network>> Create(const LayerFile& file, const NetworkOptions& options,
                                                         Device* device);
  ~Network();

  const Layout& layout() const;
  int layer_count() const;
  const std::string& layer_name(int layer) const;
  // The layer's tensors, alignment gaps included; empty for a layer without parameters.
  ElementRange LayerRange(int layer) const;
  std::vector<NetworkBuffer> buffers();
  // Between one of buffers() and host memory; when they return it is done.
  absl::Status ReadBuffer(const NetworkBuffer& buffer, std::span<float> values);
  absl::Status WriteBuffer(const NetworkBuffer& buffer, std::span<const float> values);
  int64_t arena_bytes() const;

  // Writes to host memory; see parameter_init.h for the distributions. Gaps are set to 0.
  void InitializeParameters(uint64_t seed, std::span<float> parameters) const;

  // The memory is the device's; images 64-byte aligned. REQUIRES: input.batch <= batch_max; parameters and gradients
  // have layout().element_count() elements.
  struct TrainStep {
    NetworkInput input;
    int64_t step = 0;
    int64_t first_sample = 0;  // position of this rank's first sample in the global batch (dropout)
    float loss_scale = 1;      // 1 / samples in the global batch
    std::span<const float> parameters;
    std::span<float> gradients;  // overwritten, gaps untouched
  };
  // Makes the operations for steps of `batch` samples, so that a Forward that follows allocates nothing: a capture must
  // not. REQUIRES: 1 <= batch <= batch_max.
  absl::Status Prepare(int64_t batch);
  // Calls before_layer(l) for every layer, in ascending l, ahead of forward's first use of layer l's parameters, and
  // stops with its error.
  absl::Status Forward(const TrainStep& step, absl::FunctionRef<absl::Status(int layer)> before_layer);
  // After Forward of the same step. Calls after_layer(l) for every layer, in descending l, when neither forward nor
  // backward will touch layer l's parameters or gradients again in this step, and stops with its error.
  absl::Status Backward(const TrainStep& step, absl::FunctionRef<absl::Status(int layer)> after_layer);
  LossResult Result();  // of the last Forward or Evaluate
  // The operations that the last Forward or Evaluate ran, and the device memory that they write to. A captured graph
  // writes there whenever it is launched, which the network does not see: whoever keeps the graph keeps this as long,
  // so that room for another batch size is not made there. Null after an empty batch.
  std::shared_ptr<const void> operations() const;

  // Makes the plan for a batch size now, instead of at its first use. REQUIRES: 1 <= batch <= batch_max, or
  // evaluation_batch_max.
  absl::Status PlanTraining(int64_t batch);
  absl::Status PlanEvaluation(int64_t batch);

  // Evaluation: no dropout, running statistics. Nothing may happen between Forward and Backward.
  // REQUIRES: input.batch <= evaluation_batch_max.
  absl::Status Evaluate(const NetworkInput& input, std::span<const float> parameters);

 private:
  class Impl;
  explicit Network(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace starring

#endif  // STARRING_WORKER_MODEL_NETWORK_H_
