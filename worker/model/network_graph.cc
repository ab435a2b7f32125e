#include "worker/model/network_graph.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/arithmetic/philox.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "proto/starring/v1/layer_file.pb.h"

namespace starring {
namespace {

// Builds the layers in file order, so that the shape of every input is known when a layer needs it.
class GraphBuilder {
 public:
  GraphBuilder(const LayerFile& file, const NetworkGraph::DataShape& data)
      : file_(file),
        image_{.height = data.height, .width = data.width, .channels = data.channels},
        outputs_(data.outputs) {}

  absl::Status AddLayer(int number) {
    const v1::Layer& proto = file_.definition().layer(number);
    GraphLayer layer;
    layer.name = proto.name();
    layer.number = number;
    layer.first_tensor = static_cast<int>(tensors_.size());
    Resolve(proto, &layer);
    // Most kinds keep the shape. Their rows' functions change the others.
    layer.out = layer.in;
    const auto error = [&](absl::string_view field, absl::string_view reason) {
      return file_.LayerError(number, field, reason);
    };
    LayerFill fill{.layer = proto, .inputs = {}, .input_names = {}, .outputs = outputs_, .error = error};
    for (const int input : layer.inputs) {
      fill.inputs.push_back(ShapeOf(input));
      fill.input_names.push_back(input == GraphLayer::kImage ? "input" : layers_[input].name);
    }
    RETURN_IF_ERROR(LayerTypeOf(proto)->fill(fill, &layer, &tensors_));
    // Checked before the next layer multiplies this shape, so that no product of sizes overflows.
    if (layer.out.elements() > kSampleElementsMax) {
      return file_.LayerError(number, "",
                              absl::StrCat("its output has ", layer.out.elements(), " elements a sample, at most ",
                                           kSampleElementsMax, " are allowed"));
    }
    layer.tensor_count = static_cast<int>(tensors_.size()) - layer.first_tensor;
    layers_.push_back(std::move(layer));
    if (layers_.back().relu_after || layers_.back().then.has_value()) {
      GraphLayer after = ActivationAfter(layers_.back());
      after.inputs = {static_cast<int>(layers_.size()) - 1};
      layers_.push_back(std::move(after));
    }
    numbers_.emplace(proto.name(), static_cast<int>(layers_.size()) - 1);
    return absl::OkStatus();
  }

  std::vector<GraphLayer> TakeLayers() { return std::move(layers_); }
  std::vector<TensorSpec> TakeTensors() { return std::move(tensors_); }

 private:
  // CheckLayers has made sure that every input exists and is above.
  void Resolve(const v1::Layer& proto, GraphLayer* layer) {
    // For the first layer kImage, which is -1.
    if (proto.input_size() == 0) layer->inputs.push_back(static_cast<int>(layers_.size()) - 1);
    for (const std::string& input : proto.input()) {
      layer->inputs.push_back(input == "input" ? GraphLayer::kImage : numbers_.at(input));
    }
    layer->in = ShapeOf(layer->inputs[0]);
  }

  const SampleShape& ShapeOf(int layer) const { return layer == GraphLayer::kImage ? image_ : layers_[layer].out; }

  const LayerFile& file_;
  const SampleShape image_;
  const int64_t outputs_;
  std::vector<GraphLayer> layers_;
  std::vector<TensorSpec> tensors_;
  std::map<std::string, int> numbers_;  // by name: the last layer of the graph that computes it
};

absl::Status CheckLast(const LayerFile& file, const GraphLayer& last, int64_t outputs) {
  const int number = file.definition().layer_size() - 1;
  // The loss takes one number for each class or target.
  if (last.out.height * last.out.width != 1) {
    return file.LayerError(number, "",
                           absl::StrCat("is the last layer, its output must be ", outputs, " numbers a sample, it is ",
                                        ToString(last.out), ": end with dense {}"));
  }
  if (last.out.channels == outputs) return absl::OkStatus();
  const bool is_dense = file.definition().layer(number).has_dense();
  return file.LayerError(
      number, is_dense ? "units" : "",
      absl::StrCat("is the last layer and has ", last.out.channels, " outputs, the data set has ", outputs,
                   LossOf(file).kind == LossKind::kSoftmax ? " classes" : " targets a sample", ": both must be equal",
                   is_dense ? ", so leave `units` out" : ""));
}

void FillUniform(const RandomKey& key, float bound, std::span<float> values) {
  PhiloxWords words{};
  for (size_t i = 0; i < values.size(); ++i) {
    // Philox makes four words at a time.
    if (i % 4 == 0) words = key.At(i / 4);
    values[i] = (2 * UnitFloat(words[i % 4]) - 1) * bound;
  }
}

}  // namespace

GraphLoss LossOf(const LayerFile& file) {
  const v1::Loss& loss = file.definition().loss();
  if (loss.has_mse()) return {.kind = LossKind::kMse};
  if (loss.has_bce()) return {.kind = LossKind::kBce};
  // A file without a loss reads as a smoothing of 0, which is the default.
  return {.label_smoothing = loss.softmax().label_smoothing()};
}

absl::StatusOr<NetworkGraph> NetworkGraph::Create(const LayerFile& file, const DataShape& data) {
  if (data.height < 1 || data.width < 1 || data.channels < 1 || data.outputs < 1) {
    return absl::InvalidArgumentError(absl::StrCat("the data set has images of ", data.height, " x ", data.width, " x ",
                                                   data.channels, " and ", data.outputs,
                                                   " classes or targets: every number must be 1 or more"));
  }
  NetworkGraph graph;
  graph.data_ = data;
  GraphBuilder builder(file, data);
  for (int l = 0; l < file.definition().layer_size(); ++l) RETURN_IF_ERROR(builder.AddLayer(l));
  graph.layers_ = builder.TakeLayers();
  graph.loss_ = LossOf(file);
  RETURN_IF_ERROR(CheckLast(file, graph.layers_.back(), data.outputs));
  // The layout follows the layers' order: backward then completes the vector from its end.
  ASSIGN_OR_RETURN(graph.layout_, Layout::Create(builder.TakeTensors()), file.file_name());
  if (graph.layout_.tensors().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(file.file_name(), ": no layer has anything to train"));
  }
  return graph;
}

ElementRange NetworkGraph::LayerRange(int layer) const {
  const GraphLayer& l = layers_[layer];
  if (l.tensor_count == 0) return {};
  const std::vector<Tensor>& tensors = layout_.tensors();
  // The range ends where the next tensor begins and not where the last one ends, so that the ranges of all layers cover
  // the vector.
  const int next = l.first_tensor + l.tensor_count;
  return {tensors[l.first_tensor].range.begin,
          next < std::ssize(tensors) ? tensors[next].range.begin : layout_.element_count()};
}

void InitializeParameters(const NetworkGraph& graph, uint64_t seed, std::span<float> parameters) {
  CHECK_EQ(std::ssize(parameters), graph.layout().element_count());
  // The gaps between tensors must be set too, because they are part of buckets and of the digest.
  std::fill(parameters.begin(), parameters.end(), 0.0f);
  std::vector<float> in_torch_order;
  for (const GraphLayer& layer : graph.layers()) {
    for (int t = layer.first_tensor; t < layer.first_tensor + layer.tensor_count; ++t) {
      const Tensor& tensor = graph.layout().tensors()[t];
      const std::span<float> values = parameters.subspan(tensor.range.begin, tensor.range.size());
      if (layer.fan_in == 0) {
        // Gamma is 1 and beta is 0, so that a norm only normalises at first.
        std::fill(values.begin(), values.end(), t == layer.first_tensor ? 1.0f : 0.0f);
        continue;
      }
      // Each tensor has a stream, so that its values depend on its number and not on the sizes of those before it.
      const RandomKey key{.seed = seed, .purpose = RandomPurpose::kInit, .stream = static_cast<uint32_t>(t)};
      // Drawn in PyTorch's order and then reordered, so that the peer in bench/ddp draws the same values.
      in_torch_order.resize(values.size());
      // PyTorch draws weights and biases of convolution and dense uniformly between -b and b, where b is 1 / sqrt(fan
      // in).
      FillUniform(key, static_cast<float>(1 / std::sqrt(static_cast<double>(layer.fan_in))), in_torch_order);
      FromTorchOrder(tensor.spec, in_torch_order, values);
    }
  }
}

}  // namespace starring
