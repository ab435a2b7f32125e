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
#include "worker/model/layer_file.h"
#include "worker/model/layer_table.h"

namespace starring {

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

  // One for each layer of the file, or two where an operation has an activation after it that it cannot compute.
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
// gain). Batch, group and layer norm: weight 1, bias 0. Philox draws every number from (seed, kInit, number of the
// tensor, place of the element in PyTorch's memory order). So the values depend neither on our memory order nor on how
// the work is divided.
// REQUIRES: `parameters` is as long as the layout.
void InitializeParameters(const NetworkGraph& graph, uint64_t seed, std::span<float> parameters);

}  // namespace starring

#endif  // STARRING_WORKER_MODEL_NETWORK_GRAPH_H_
