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

Activation ActivationOf(bool relu) { return relu ? Activation::kRelu : Activation::kNone; }

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
    layer.first_tensor = static_cast<int>(tensors_.size());
    Resolve(number, proto, &layer);
    // Most kinds keep the shape. Fill changes the others.
    layer.out = layer.in;
    RETURN_IF_ERROR(Fill(number, proto, &layer));
    // Checked before the next layer multiplies this shape, so that no product of sizes overflows.
    if (layer.out.elements() > kSampleElementsMax) {
      return file_.LayerError(number, "",
                              absl::StrCat("its output has ", layer.out.elements(), " elements a sample, at most ",
                                           kSampleElementsMax, " are allowed"));
    }
    layer.tensor_count = static_cast<int>(tensors_.size()) - layer.first_tensor;
    numbers_.emplace(layer.name, number);
    layers_.push_back(std::move(layer));
    return absl::OkStatus();
  }

  std::vector<GraphLayer> TakeLayers() { return std::move(layers_); }
  std::vector<TensorSpec> TakeTensors() { return std::move(tensors_); }

 private:
  // CheckLayers has made sure that every input exists and is above.
  void Resolve(int number, const v1::Layer& proto, GraphLayer* layer) {
    if (proto.input_size() == 0) layer->inputs.push_back(number - 1);  // for the first layer kImage, which is -1
    for (const std::string& input : proto.input()) {
      layer->inputs.push_back(input == "input" ? GraphLayer::kImage : numbers_.at(input));
    }
    layer->in = ShapeOf(layer->inputs[0]);
  }

  const SampleShape& ShapeOf(int layer) const { return layer == GraphLayer::kImage ? image_ : layers_[layer].out; }

  absl::Status Fill(int number, const v1::Layer& proto, GraphLayer* layer) {
    switch (proto.kind_case()) {
      case v1::Layer::kConv2D:
        return FillConv2d(number, proto.conv2d(), layer);
      case v1::Layer::kDense:
        FillDense(proto.dense(), layer);
        return absl::OkStatus();
      case v1::Layer::kRelu:
        layer->kind = LayerKind::kRelu;
        return absl::OkStatus();
      case v1::Layer::kMaxPool:
        return FillMaxPool(number, proto.max_pool(), layer);
      case v1::Layer::kGlobalAveragePool:
        layer->kind = LayerKind::kGlobalAveragePool;
        layer->out = {.height = 1, .width = 1, .channels = layer->in.channels, .flat = true};
        return RequireImage(number, *layer);
      case v1::Layer::kBatchNorm:
        return FillBatchNorm(number, proto.batch_norm(), layer);
      case v1::Layer::kDropout:
        layer->kind = LayerKind::kDropout;
        layer->rate = proto.dropout().rate();
        return absl::OkStatus();
      case v1::Layer::kAdd:
        return FillAdd(number, proto.add(), layer);
      case v1::Layer::kFlatten:
        layer->kind = LayerKind::kFlatten;
        layer->out.flat = true;
        return absl::OkStatus();
      case v1::Layer::KIND_NOT_SET:
        break;
    }
    return file_.LayerError(number, "", "is of a kind that this program does not know");
  }

  absl::Status FillConv2d(int number, const v1::Conv2d& conv, GraphLayer* layer) {
    layer->kind = LayerKind::kConv2d;
    layer->activation = ActivationOf(conv.relu());
    layer->bias = conv.no_bias() ? Bias::kNone : Bias::kAdded;
    RETURN_IF_ERROR(RequireImage(number, *layer));
    // A stride that the file does not give is read as 0, and 0 stands for the default.
    RETURN_IF_ERROR(
        SlideWindow(number, {conv.kernel(), conv.stride() == 0 ? 1 : conv.stride(), conv.padding()}, layer));
    layer->out.channels = conv.out_channels();
    AddTensor({.name = layer->name + ".weight",
               .dims = {conv.out_channels(), conv.kernel(), conv.kernel(), layer->in.channels},
               // A weight is (out, height, width, in) in memory, as images are; PyTorch has (out, in, height, width).
               .torch_axes = {0, 3, 1, 2},
               .torch_shape = {}});
    AddBias(conv.out_channels(), layer);
    return absl::OkStatus();
  }

  void FillDense(const v1::Dense& dense, GraphLayer* layer) {
    layer->kind = LayerKind::kDense;
    layer->activation = ActivationOf(dense.relu());
    layer->bias = dense.no_bias() ? Bias::kNone : Bias::kAdded;
    // The layer file's check has found that only the last layer leaves its units to the data.
    const int64_t units = dense.units() == 0 ? outputs_ : dense.units();
    layer->out = {.height = 1, .width = 1, .channels = units, .flat = true};
    const SampleShape& in = layer->in;
    TensorSpec weight{
        .name = layer->name + ".weight", .dims = {units, in.elements()}, .torch_axes = {}, .torch_shape = {}};
    if (in.channels > 1 && in.height * in.width > 1) {
      // PyTorch flattens (channels, height, width), this program (height, width, channels). The weight keeps the axes
      // of the image apart, so that it can be reordered when a checkpoint or the initial values change between the two.
      weight.dims = {units, in.height, in.width, in.channels};
      weight.torch_axes = {0, 3, 1, 2};
      weight.torch_shape = {units, in.elements()};
    }
    AddTensor(std::move(weight));
    AddBias(units, layer);
  }

  absl::Status FillMaxPool(int number, const v1::MaxPool2d& pool, GraphLayer* layer) {
    layer->kind = LayerKind::kMaxPool;
    RETURN_IF_ERROR(RequireImage(number, *layer));
    return SlideWindow(number, {pool.kernel(), pool.stride() == 0 ? pool.kernel() : pool.stride(), pool.padding()},
                       layer);
  }

  absl::Status FillBatchNorm(int number, const v1::BatchNorm& norm, GraphLayer* layer) {
    layer->kind = LayerKind::kBatchNorm;
    layer->activation = ActivationOf(norm.relu());
    // A number that the file does not give is read as 0. The defaults are PyTorch's.
    layer->epsilon = norm.epsilon() == 0 ? 1e-5f : norm.epsilon();
    layer->momentum = norm.momentum() == 0 ? 0.1f : norm.momentum();
    // Flattening keeps the order of the values in memory, but PyTorch would see height * width * channels features
    // here, each with a mean of its own.
    if (layer->in.flat && layer->in.height * layer->in.width > 1) {
      return file_.LayerError(number, "", "batch_norm of a flattened image is not supported: put it before flatten");
    }
    AddTensor({.name = layer->name + ".weight", .dims = {layer->in.channels}, .torch_axes = {}, .torch_shape = {}});
    layer->bias = Bias::kAdded;
    AddBias(layer->in.channels, layer);
    return absl::OkStatus();
  }

  absl::Status FillAdd(int number, const v1::Add& add, GraphLayer* layer) {
    layer->kind = LayerKind::kAdd;
    layer->activation = ActivationOf(add.relu());
    const SampleShape& other = ShapeOf(layer->inputs[1]);
    // Both shapes must be equal. PyTorch would broadcast one of them, and a model with a wrong shape would train.
    if (layer->in == other) return absl::OkStatus();
    return file_.LayerError(
        number, "input",
        absl::StrCat("adds ", ToString(layer->in), " (", NameOf(layer->inputs[0]), ") and ", ToString(other), " (",
                     NameOf(layer->inputs[1]), "): both must have one shape"));
  }

  std::string NameOf(int layer) const { return layer == GraphLayer::kImage ? "input" : layers_[layer].name; }

  absl::Status RequireImage(int number, const GraphLayer& layer) {
    if (!layer.in.flat) return absl::OkStatus();
    return file_.LayerError(number, "", absl::StrCat("needs an image, its input is ", ToString(layer.in)));
  }

  struct Window {
    int64_t kernel, stride, padding;
  };
  absl::Status SlideWindow(int number, const Window& window, GraphLayer* layer) {
    layer->kernel = window.kernel;
    layer->stride = window.stride;
    layer->padding = window.padding;
    const int64_t height = layer->in.height + 2 * window.padding;
    const int64_t width = layer->in.width + 2 * window.padding;
    if (window.kernel > height || window.kernel > width) {
      return file_.LayerError(number, "kernel",
                              absl::StrCat("kernel ", window.kernel, " is larger than its input, ", ToString(layer->in),
                                           window.padding > 0 ? absl::StrCat(" with padding ", window.padding) : "",
                                           ": the output would have a size below 1"));
    }
    // The division rounds down, as PyTorch's does: a window that does not fit is left out.
    layer->out.height = (height - window.kernel) / window.stride + 1;
    layer->out.width = (width - window.kernel) / window.stride + 1;
    return absl::OkStatus();
  }

  void AddTensor(TensorSpec spec) { tensors_.push_back(std::move(spec)); }
  void AddBias(int64_t size, GraphLayer* layer) {
    if (layer->bias == Bias::kNone) return;
    AddTensor({.name = layer->name + ".bias", .dims = {size}, .torch_axes = {}, .torch_shape = {}});
  }

  const LayerFile& file_;
  const SampleShape image_;
  const int64_t outputs_;
  std::vector<GraphLayer> layers_;
  std::vector<TensorSpec> tensors_;
  std::map<std::string, int> numbers_;
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
  return file.LayerError(
      number, last.kind == LayerKind::kDense ? "units" : "",
      absl::StrCat("is the last layer and has ", last.out.channels, " outputs, the data set has ", outputs,
                   LossOf(file).kind == LossKind::kSoftmax ? " classes" : " targets a sample", ": both must be equal",
                   last.kind == LayerKind::kDense ? ", so leave `units` out" : ""));
}

// The number of inputs that one output is computed from.
int64_t FanIn(const GraphLayer& layer) {
  return layer.kind == LayerKind::kConv2d ? layer.kernel * layer.kernel * layer.in.channels : layer.in.elements();
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

std::string ToString(const SampleShape& shape) {
  if (shape.flat) return absl::StrCat(shape.elements(), " (flat)");
  return absl::StrCat(shape.height, " x ", shape.width, " x ", shape.channels);
}

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
      if (layer.kind == LayerKind::kBatchNorm) {
        // Gamma is 1 and beta is 0, so that the layer only normalises at first.
        std::fill(values.begin(), values.end(), t == layer.first_tensor ? 1.0f : 0.0f);
        continue;
      }
      // Each tensor has a stream, so that its values depend on its number and not on the sizes of those before it.
      const RandomKey key{.seed = seed, .purpose = RandomPurpose::kInit, .stream = static_cast<uint32_t>(t)};
      // Drawn in PyTorch's order and then reordered, so that the peer in bench/ddp draws the same values.
      in_torch_order.resize(values.size());
      // PyTorch draws weights and biases of convolution and dense uniformly between -b and b, where b is 1 / sqrt(fan
      // in).
      FillUniform(key, static_cast<float>(1 / std::sqrt(static_cast<double>(FanIn(layer)))), in_torch_order);
      FromTorchOrder(tensor.spec, in_torch_order, values);
    }
  }
}

}  // namespace starring
