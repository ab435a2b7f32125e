// The table of layers: a row says everything about a kind of layer. The check of layer files, the graph and, through
// the graph, the program and the plan read it; python/starring/_layer_table.py is the same table for PyTorch.
//
// Thread safety: pure functions.
#ifndef STARRING_WORKER_MODEL_LAYER_TABLE_H_
#define STARRING_WORKER_MODEL_LAYER_TABLE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/job/layout.h"
#include "kernels/device.h"

namespace starring::v1 {
class Layer;
}

namespace starring {

// How a layer runs. The program treats kOperation by the fields of GraphLayer alone.
enum class LayerKind { kOperation, kRelu, kBatchNorm, kDropout, kAdd, kFlatten };

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
  int number = 0;  // in the file
  LayerKind kind = LayerKind::kOperation;
  std::vector<int> inputs;  // layers above, or kImage
  SampleShape in, out;      // add: `in` is the shape of both inputs

  // kOperation: one, or one for each input, which all write parts of y. For a batch of one sample: a plan puts its
  // batch there, and whether the input's gradient is needed.
  std::vector<OperationSpec> operations;
  // Whether backward reads x, and whether it reads more of y than where it is positive, as the mask of a ReLU does. The
  // program keeps no other tensor for it.
  bool backward_reads_input = false, backward_reads_output = false;
  bool works_in_place = false;  // y may be where x is, and dx where dy is. REQUIRES: !backward_reads_input

  Activation activation = Activation::kNone;  // by the operation itself
  // A ReLU or an activation after it, which the operation cannot compute. The graph has a layer more for that.
  bool relu_after = false;
  std::optional<ActivationSpec> then;
  Bias bias = Bias::kNone;
  float epsilon = 0, momentum = 0;  // batch norm
  float rate = 0;                   // dropout

  // The layer's tensors in the layout: weight, then bias; for batch norm gamma (weight), then beta (bias). tensor_count
  // is 0, 1 or 2.
  int first_tensor = 0;
  int tensor_count = 0;
  // Inputs of one output, which decide the range of the first values; 0 for a layer whose weight begins as 1 and whose
  // bias as 0.
  int64_t fan_in = 0;
};

using LayerErrorFunction = absl::FunctionRef<absl::Status(absl::string_view field, absl::string_view reason)>;

// A row's functions read one of these. An error names the field of the file, or "".
struct LayerCheck {
  const v1::Layer& layer;
  bool is_last;
  LayerErrorFunction error;
};
struct LayerFill {
  const v1::Layer& layer;
  std::vector<SampleShape> inputs;       // their shapes
  std::vector<std::string> input_names;  // for messages
  int64_t outputs;                       // that the data need of the last layer
  LayerErrorFunction error;
};

inline constexpr int kTwoOrMore = -2;

struct LayerType {
  int input_count;  // a layer that names none reads the one above; kTwoOrMore
  // The ranges of the numbers; null if the kind has none.
  absl::Status (*check)(const LayerCheck& at);
  // Completes `layer`, whose name, inputs, `in`, and `out` (= `in`) are set, and adds its tensors.
  absl::Status (*fill)(const LayerFill& at, GraphLayer* layer, std::vector<TensorSpec>* tensors);
};

// Null if the layer has no kind.
const LayerType* LayerTypeOf(const v1::Layer& layer);

// The layer after `layer` that computes relu_after or then, without `inputs`.
GraphLayer ActivationAfter(const GraphLayer& layer);

// "conv2d, dense, ... or flatten": the kinds, in the order of the proto.
std::string LayerKindNames();

}  // namespace starring

#endif  // STARRING_WORKER_MODEL_LAYER_TABLE_H_
