// A layer file combined with the shape of an image: the shapes, tensors and inputs of every layer, and the first values
// of the tensors.
//
// Thread safety: immutable after Create; any thread may call any method.
#ifndef STARRING_WORKER_MODEL_NETWORK_GRAPH_H_
#define STARRING_WORKER_MODEL_NETWORK_GRAPH_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/job/layout.h"
#include "kernels/device.h"
#include "worker/model/layer_file.h"

namespace starring {

enum class LayerKind { kConv2d, kDense, kRelu, kMaxPool, kGlobalAveragePool, kBatchNorm, kDropout, kAdd, kFlatten };

// One sample, (height, width, channels) in memory. Flattening changes only `flat`.
struct SampleShape {
  int64_t height = 1, width = 1, channels = 1;
  bool flat = false;  // layers that need an image refuse a flat sample
  int64_t elements() const { return height * width * channels; }
  friend bool operator==(const SampleShape&, const SampleShape&) = default;
};
std::string ToString(const SampleShape& shape);  // "28 x 28 x 1", "400 (flat)"

struct GraphLayer {
  static constexpr int kImage = -1;

  std::string name;
  LayerKind kind = LayerKind::kFlatten;
  std::vector<int> inputs;  // layers above, or kImage
  SampleShape in, out;      // add: `in` is the shape of both inputs

  int64_t kernel = 1, stride = 1, padding = 0;  // convolution, pool
  Activation activation = Activation::kNone;
  Bias bias = Bias::kNone;
  float epsilon = 0, momentum = 0;  // batch norm
  float rate = 0;                   // dropout

  // The layer's tensors in the layout: weight, then bias; for batch norm gamma (weight), then beta (bias). tensor_count
  // is 0, 1 or 2.
  int first_tensor = 0;
  int tensor_count = 0;
};

struct GraphLoss {
  LossKind kind = LossKind::kSoftmax;
  float label_smoothing = 0;
};
// A file without a loss has the default one.
GraphLoss LossOf(const LayerFile& file);

class NetworkGraph {
 public:
  struct DataShape {
    int64_t height = 0, width = 0, channels = 0, outputs = 0;
  };
  // InvalidArgument with file, line, layer and reason: a shape below 1, a layer that needs an image after a flat one,
  // an add of different shapes, a last layer that is not a vector of `outputs` numbers, a tensor that is too large.
  static absl::StatusOr<NetworkGraph> Create(const LayerFile& file, const DataShape& data);

  const std::vector<GraphLayer>& layers() const { return layers_; }
  const GraphLoss& loss() const { return loss_; }
  const Layout& layout() const { return layout_; }
  const DataShape& data() const { return data_; }

  // The elements of the layer's tensors and of the alignment gaps after them; empty for a layer without tensors.
  ElementRange LayerRange(int layer) const;

 private:
  DataShape data_;
  std::vector<GraphLayer> layers_;
  GraphLoss loss_;
  Layout layout_;
};

// Fills the parameter vector (host memory) with PyTorch's default initialisers, and the gaps with 0.
//
// Convolution and dense: weight and bias uniform in [-1/sqrt(fan_in), 1/sqrt(fan_in)), where fan_in is the number of
// inputs of one output (for the weight that is kaiming_uniform(a = sqrt 5): He et al., 2015, equation 10 with PyTorch's
// gain). Batch norm: weight 1, bias 0. Philox draws every number from (seed, kInit, number of the tensor, place of the
// element in PyTorch's memory order). So the values depend neither on our memory order nor on how the work is divided.
// REQUIRES: `parameters` is as long as the layout.
void InitializeParameters(const NetworkGraph& graph, uint64_t seed, std::span<float> parameters);

}  // namespace starring

#endif  // STARRING_WORKER_MODEL_NETWORK_GRAPH_H_
