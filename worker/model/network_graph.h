// A layer file and the shape of an image, put together: every layer's shapes, tensors and sources.
//
// Thread safety: immutable after Create; any thread may call any method.
#ifndef STARRING_WORKER_MODEL_NETWORK_GRAPH_H_
#define STARRING_WORKER_MODEL_NETWORK_GRAPH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/layout.h"
#include "kernels/device.h"
#include "worker/model/layer_file.h"

namespace starring {

enum class LayerKind { kConv2d, kDense, kRelu, kMaxPool, kGlobalAveragePool, kBatchNorm, kDropout, kAdd, kFlatten };

// One sample, (height, width, channels) in memory, also when it has been flattened.
struct SampleShape {
  int64_t height = 1, width = 1, channels = 1;
  bool flat = false;  // layers that need an image refuse it
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

  // Into the layout: weight, then bias; batch norm: gamma (weight), beta (bias). tensor_count is 0, 1 or 2.
  int first_tensor = 0;
  int tensor_count = 0;
};

class NetworkGraph {
 public:
  struct DataShape {
    int64_t height = 0, width = 0, channels = 0, classes = 0;
  };
  // InvalidArgument with file, line, layer and reason: a shape below 1, an image layer behind a flat one, add of
  // different shapes, a last layer that is no vector of `classes` numbers, a tensor that is too large.
  static absl::StatusOr<NetworkGraph> Create(const LayerFile& file, const DataShape& data);

  const std::vector<GraphLayer>& layers() const { return layers_; }
  const Layout& layout() const { return layout_; }
  const DataShape& data() const { return data_; }

  // The layer's tensors and the gaps behind them; empty without tensors.
  ElementRange LayerRange(int layer) const;

 private:
  DataShape data_;
  std::vector<GraphLayer> layers_;
  Layout layout_;
};

}  // namespace starring

#endif  // STARRING_WORKER_MODEL_NETWORK_GRAPH_H_
