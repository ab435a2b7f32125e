#include "worker/model/layer_table.h"

#include <google/protobuf/descriptor.h>

#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/printable.h"
#include "common/base/status.h"
#include "proto/starring/v1/layer_file.pb.h"

namespace starring {
namespace {

struct Bounds {
  int64_t lowest;
  int64_t highest;
};

absl::Status CheckNumber(const LayerCheck& at, absl::string_view field, int64_t value, const Bounds& bounds) {
  if (value >= bounds.lowest && value <= bounds.highest) return absl::OkStatus();
  return at.error(field,
                  absl::StrCat(field, " is ", value, ", it must be from ", bounds.lowest, " to ", bounds.highest));
}

constexpr Bounds kChannelBounds{1, kLayerWidthMax};
constexpr Bounds kKernelBounds{1, kLayerKernelMax};
// 0 is a stride that the file does not give: 1 for a convolution, the kernel for a pool.
constexpr Bounds kStrideBounds{0, kLayerKernelMax};
constexpr Bounds kPaddingBounds{0, kLayerKernelMax};

Activation ActivationOf(bool relu) { return relu ? Activation::kRelu : Activation::kNone; }

absl::Status RequireImage(const LayerFill& at) {
  if (!at.inputs[0].flat) return absl::OkStatus();
  return at.error("", absl::StrCat("needs an image, its input is ", ToString(at.inputs[0])));
}

struct Window {
  int64_t kernel, stride, padding;
};

// Sets the output's height and width.
absl::Status SlideWindow(const LayerFill& at, const Window& window, GraphLayer* layer) {
  const int64_t height = layer->in.height + 2 * window.padding;
  const int64_t width = layer->in.width + 2 * window.padding;
  if (window.kernel > height || window.kernel > width) {
    return at.error("kernel", absl::StrCat("kernel ", window.kernel, " is larger than its input, ", ToString(layer->in),
                                           window.padding > 0 ? absl::StrCat(" with padding ", window.padding) : "",
                                           ": the output would have a size below 1"));
  }
  // The division rounds down, as PyTorch's does: a window that does not fit is left out.
  layer->out.height = (height - window.kernel) / window.stride + 1;
  layer->out.width = (width - window.kernel) / window.stride + 1;
  return absl::OkStatus();
}

void AddBias(int64_t size, const GraphLayer& layer, std::vector<TensorSpec>* tensors) {
  if (layer.bias == Bias::kNone) return;
  tensors->push_back({.name = layer.name + ".bias", .dims = {size}, .torch_axes = {}, .torch_shape = {}});
}

Pool2dSpec PoolOf(const SampleShape& in, const Window& window) {
  return {.batch = 1,
          .in_height = in.height,
          .in_width = in.width,
          .channels = in.channels,
          .kernel_height = window.kernel,
          .kernel_width = window.kernel,
          .stride_height = window.stride,
          .stride_width = window.stride,
          .padding_height = window.padding,
          .padding_width = window.padding};
}

// activation

struct NamedFunction {
  absl::string_view name;
  ActivationFunction function;
};
constexpr NamedFunction kFunctions[] = {
    {"relu6", ActivationFunction::kRelu6},         {"sigmoid", ActivationFunction::kSigmoid},
    {"tanh", ActivationFunction::kTanh},           {"gelu", ActivationFunction::kGelu},
    {"gelu_tanh", ActivationFunction::kGeluTanh},  {"silu", ActivationFunction::kSilu},
    {"leaky_relu", ActivationFunction::kLeakyRelu}};
constexpr float kLeakySlope = 0.01f;  // PyTorch's default
constexpr size_t kShownBytes = 32;    // of a name that is no function's

std::optional<ActivationFunction> FunctionOf(absl::string_view name) {
  for (const NamedFunction& known : kFunctions) {
    if (known.name == name) return known.function;
  }
  return std::nullopt;
}

absl::Status CheckFunction(const LayerCheck& at, absl::string_view field, const std::string& name) {
  if (FunctionOf(name).has_value()) return absl::OkStatus();
  // The text may have any length and any bytes.
  const std::string shown =
      absl::StrCat(Printable(absl::string_view(name).substr(0, kShownBytes)), name.size() > kShownBytes ? "..." : "");
  return at.error(field, absl::StrCat(field, " is \"", shown,
                                      "\", it must be relu6, sigmoid, tanh, gelu, gelu_tanh, silu or leaky_relu"));
}

// The field `activation` of a layer that also has `relu`.
template <typename Kind>
absl::Status CheckActivationField(const LayerCheck& at, const Kind& kind) {
  if (kind.activation().empty()) return absl::OkStatus();
  if (kind.relu()) return at.error("activation", "has relu and an activation, it can have one of them");
  return CheckFunction(at, "activation", kind.activation());
}

template <typename Kind>
void FillActivations(const Kind& kind, GraphLayer* layer) {
  layer->activation = ActivationOf(kind.relu());
  if (const std::optional<ActivationFunction> function = FunctionOf(kind.activation())) {
    layer->then = ActivationSpec{.function = *function, .parameter = kLeakySlope};
  }
}

absl::Status CheckActivation(const LayerCheck& at) {
  const v1::Activation& activation = at.layer.activation();
  RETURN_IF_ERROR(CheckFunction(at, "function", activation.function()));
  const float slope = activation.slope();
  // The negation also refuses NaN.
  if (!(slope >= 0) || std::isinf(slope)) {
    return at.error("slope", absl::StrCat("slope is ", slope, ", it must be 0 or more (0 means 0.01)"));
  }
  if (slope == 0 || activation.function() == "leaky_relu") return absl::OkStatus();
  return at.error("slope", absl::StrCat("slope is ", slope, ", which only leaky_relu has"));
}

// y = f(x) in the shape of x.
void FillFunction(const ActivationSpec& function, GraphLayer* layer) {
  ActivationSpec spec = function;
  spec.batch = 1;
  spec.sample_elements = layer->in.elements();
  layer->operations = {spec};
  layer->backward_reads_input = BackwardReadsInput(spec.function);
  // A function in place overwrites x. That is allowed only where backward does not read x.
  layer->works_in_place = !layer->backward_reads_input;
  layer->backward_reads_output = layer->works_in_place && spec.function != ActivationFunction::kScale;
}

absl::Status FillActivation(const LayerFill& at, GraphLayer* layer, std::vector<TensorSpec>*) {
  const v1::Activation& activation = at.layer.activation();
  const float slope = activation.slope() == 0 ? kLeakySlope : activation.slope();
  FillFunction({.function = *FunctionOf(activation.function()), .parameter = slope}, layer);
  return absl::OkStatus();
}

absl::Status CheckScale(const LayerCheck& at) {
  const float factor = at.layer.scale().factor();
  if (factor != 0 && std::isfinite(factor)) return absl::OkStatus();
  return at.error("factor", absl::StrCat("factor is ", factor, ", it must be a finite number other than 0"));
}

absl::Status FillScale(const LayerFill& at, GraphLayer* layer, std::vector<TensorSpec>*) {
  FillFunction({.function = ActivationFunction::kScale, .parameter = at.layer.scale().factor()}, layer);
  return absl::OkStatus();
}

// conv2d

absl::Status CheckConv2d(const LayerCheck& at) {
  const v1::Conv2d& conv = at.layer.conv2d();
  const Bounds bounds{conv.depthwise() ? 0 : kChannelBounds.lowest, kChannelBounds.highest};
  RETURN_IF_ERROR(CheckNumber(at, "out_channels", conv.out_channels(), bounds));
  RETURN_IF_ERROR(CheckNumber(at, "kernel", conv.kernel(), kKernelBounds));
  RETURN_IF_ERROR(CheckNumber(at, "stride", conv.stride(), kStrideBounds));
  RETURN_IF_ERROR(CheckNumber(at, "padding", conv.padding(), kPaddingBounds));
  return CheckActivationField(at, conv);
}

// Its operation has no ReLU: few depthwise convolutions are without a batch norm after them.
absl::Status FillDepthwise(const LayerFill& at, const Window& window, GraphLayer* layer) {
  const v1::Conv2d& conv = at.layer.conv2d();
  const int64_t channels = layer->in.channels;
  if (conv.out_channels() != 0 && conv.out_channels() != channels) {
    return at.error("out_channels",
                    absl::StrCat("out_channels is ", conv.out_channels(),
                                 ", a depthwise convolution has as many as its input, ", channels, ": leave it out"));
  }
  layer->relu_after = conv.relu();
  layer->activation = Activation::kNone;
  layer->operations = {DepthwiseConv2dSpec{PoolOf(layer->in, window), layer->bias}};
  layer->out.channels = channels;
  return absl::OkStatus();
}

absl::Status FillConv2d(const LayerFill& at, GraphLayer* layer, std::vector<TensorSpec>* tensors) {
  const v1::Conv2d& conv = at.layer.conv2d();
  RETURN_IF_ERROR(RequireImage(at));
  FillActivations(conv, layer);
  layer->bias = conv.no_bias() ? Bias::kNone : Bias::kAdded;
  // A stride that the file does not give is read as 0, and 0 stands for the default.
  const int64_t stride = conv.stride() == 0 ? 1 : conv.stride();
  const Window window{conv.kernel(), stride, conv.padding()};
  RETURN_IF_ERROR(SlideWindow(at, window, layer));
  layer->out.channels = conv.out_channels();
  layer->operations = {Conv2dSpec{.batch = 1,
                                  .in_height = layer->in.height,
                                  .in_width = layer->in.width,
                                  .in_channels = layer->in.channels,
                                  .out_channels = layer->out.channels,
                                  .kernel_height = conv.kernel(),
                                  .kernel_width = conv.kernel(),
                                  .stride_height = stride,
                                  .stride_width = stride,
                                  .padding_height = conv.padding(),
                                  .padding_width = conv.padding(),
                                  .bias = layer->bias,
                                  .activation = layer->activation}};
  if (conv.depthwise()) RETURN_IF_ERROR(FillDepthwise(at, window, layer));
  layer->backward_reads_input = true;
  const int64_t in_channels = conv.depthwise() ? 1 : layer->in.channels;
  tensors->push_back({.name = layer->name + ".weight",
                      .dims = {layer->out.channels, conv.kernel(), conv.kernel(), in_channels},
                      // A weight is (out, height, width, in) in memory, as images are; PyTorch has (out, in, height,
                      // width).
                      .torch_axes = {0, 3, 1, 2},
                      .torch_shape = {}});
  layer->fan_in = int64_t{conv.kernel()} * conv.kernel() * in_channels;
  AddBias(layer->out.channels, *layer, tensors);
  return absl::OkStatus();
}

// dense

absl::Status CheckDense(const LayerCheck& at) {
  // The last layer may leave its units to the data.
  if (at.layer.dense().units() != 0 || !at.is_last) {
    RETURN_IF_ERROR(CheckNumber(at, "units", at.layer.dense().units(), kChannelBounds));
  }
  return CheckActivationField(at, at.layer.dense());
}

absl::Status FillDense(const LayerFill& at, GraphLayer* layer, std::vector<TensorSpec>* tensors) {
  const v1::Dense& dense = at.layer.dense();
  FillActivations(dense, layer);
  layer->bias = dense.no_bias() ? Bias::kNone : Bias::kAdded;
  // The layer file's check has found that only the last layer leaves its units to the data.
  const int64_t units = dense.units() == 0 ? at.outputs : dense.units();
  const SampleShape& in = layer->in;
  layer->out = {.height = 1, .width = 1, .channels = units, .flat = true};
  layer->operations = {
      DenseSpec{.batch = 1, .in = in.elements(), .out = units, .bias = layer->bias, .activation = layer->activation}};
  layer->backward_reads_input = true;
  layer->fan_in = in.elements();
  TensorSpec weight{
      .name = layer->name + ".weight", .dims = {units, in.elements()}, .torch_axes = {}, .torch_shape = {}};
  if (in.channels > 1 && in.height * in.width > 1) {
    // PyTorch flattens (channels, height, width), this program (height, width, channels). The weight keeps the axes
    // of the image apart, so that it can be reordered when a checkpoint or the initial values change between the two.
    weight.dims = {units, in.height, in.width, in.channels};
    weight.torch_axes = {0, 3, 1, 2};
    weight.torch_shape = {units, in.elements()};
  }
  tensors->push_back(std::move(weight));
  AddBias(units, *layer, tensors);
  return absl::OkStatus();
}

absl::Status FillRelu(const LayerFill&, GraphLayer* layer, std::vector<TensorSpec>*) {
  layer->kind = LayerKind::kRelu;
  layer->works_in_place = true;
  return absl::OkStatus();
}

// max_pool and average_pool

template <typename Pool>
absl::Status CheckPool(const LayerCheck& at, const Pool& pool) {
  RETURN_IF_ERROR(CheckNumber(at, "kernel", pool.kernel(), kKernelBounds));
  RETURN_IF_ERROR(CheckNumber(at, "stride", pool.stride(), kStrideBounds));
  // With more padding, some windows would see nothing but padding, and have no maximum.
  return CheckNumber(at, "padding", pool.padding(), {0, pool.kernel() / 2});
}

// The spec of a pool with a batch of 1; sets the output's shape.
template <typename Pool>
absl::StatusOr<Pool2dSpec> SlidePool(const LayerFill& at, const Pool& pool, GraphLayer* layer) {
  RETURN_IF_ERROR(RequireImage(at));
  const Window window{pool.kernel(), pool.stride() == 0 ? pool.kernel() : pool.stride(), pool.padding()};
  RETURN_IF_ERROR(SlideWindow(at, window, layer));
  return PoolOf(layer->in, window);
}

absl::Status CheckMaxPool(const LayerCheck& at) { return CheckPool(at, at.layer.max_pool()); }
absl::Status CheckAveragePool(const LayerCheck& at) { return CheckPool(at, at.layer.average_pool()); }

absl::Status FillMaxPool(const LayerFill& at, GraphLayer* layer, std::vector<TensorSpec>*) {
  ASSIGN_OR_RETURN(const Pool2dSpec pool, SlidePool(at, at.layer.max_pool(), layer));
  layer->operations = {pool};
  return absl::OkStatus();
}

absl::Status FillAveragePool(const LayerFill& at, GraphLayer* layer, std::vector<TensorSpec>*) {
  ASSIGN_OR_RETURN(const Pool2dSpec pool, SlidePool(at, at.layer.average_pool(), layer));
  layer->operations = {AveragePool2dSpec{pool}};
  return absl::OkStatus();
}

absl::Status FillGlobalAveragePool(const LayerFill& at, GraphLayer* layer, std::vector<TensorSpec>*) {
  RETURN_IF_ERROR(RequireImage(at));
  const SampleShape& in = layer->in;
  layer->operations = {
      GlobalAveragePoolSpec{.batch = 1, .height = in.height, .width = in.width, .channels = in.channels}};
  layer->out = {.height = 1, .width = 1, .channels = in.channels, .flat = true};
  return absl::OkStatus();
}

// batch_norm

absl::Status CheckEpsilon(const LayerCheck& at, float epsilon) {
  // The form of the condition also refuses NaN, which the text format can write.
  if (epsilon >= 0 && !std::isinf(epsilon)) return absl::OkStatus();
  return at.error("epsilon", absl::StrCat("epsilon is ", epsilon, ", it must be 0 or more (0 means 1e-5)"));
}

absl::Status CheckBatchNorm(const LayerCheck& at) {
  const v1::BatchNorm& norm = at.layer.batch_norm();
  RETURN_IF_ERROR(CheckEpsilon(at, norm.epsilon()));
  if (norm.momentum() >= 0 && norm.momentum() <= 1) return absl::OkStatus();
  return at.error("momentum", absl::StrCat("momentum is ", norm.momentum(), ", it must be from 0 to 1 (0 means 0.1)"));
}

absl::Status FillBatchNorm(const LayerFill& at, GraphLayer* layer, std::vector<TensorSpec>* tensors) {
  const v1::BatchNorm& norm = at.layer.batch_norm();
  layer->kind = LayerKind::kBatchNorm;
  layer->activation = ActivationOf(norm.relu());
  // A number that the file does not give is read as 0. The defaults are PyTorch's.
  layer->epsilon = norm.epsilon() == 0 ? 1e-5f : norm.epsilon();
  layer->momentum = norm.momentum() == 0 ? 0.1f : norm.momentum();
  layer->backward_reads_input = true;
  // Flattening keeps the order of the values in memory, but PyTorch would see height * width * channels features here,
  // each with a mean of its own.
  if (layer->in.flat && layer->in.height * layer->in.width > 1) {
    return at.error("", "batch_norm of a flattened image is not supported: put it before flatten");
  }
  tensors->push_back(
      {.name = layer->name + ".weight", .dims = {layer->in.channels}, .torch_axes = {}, .torch_shape = {}});
  layer->bias = Bias::kAdded;
  AddBias(layer->in.channels, *layer, tensors);
  return absl::OkStatus();
}

// group_norm

absl::Status CheckGroupNorm(const LayerCheck& at) {
  RETURN_IF_ERROR(CheckNumber(at, "groups", at.layer.group_norm().groups(), kChannelBounds));
  return CheckEpsilon(at, at.layer.group_norm().epsilon());
}

void FillNorm(const GroupNormSpec& norm, std::vector<int64_t> dims, GraphLayer* layer,
              std::vector<TensorSpec>* tensors) {
  GroupNormSpec spec = norm;
  spec.batch = 1;
  if (spec.epsilon == 0) spec.epsilon = 1e-5f;
  layer->operations = {spec};
  layer->backward_reads_input = true;
  layer->bias = Bias::kAdded;
  for (const char* suffix : {".weight", ".bias"}) {
    tensors->push_back({.name = layer->name + suffix, .dims = dims, .torch_axes = {}, .torch_shape = {}});
  }
}

absl::Status FillGroupNorm(const LayerFill& at, GraphLayer* layer, std::vector<TensorSpec>* tensors) {
  const v1::GroupNorm& norm = at.layer.group_norm();
  const SampleShape& in = layer->in;
  if (in.flat && in.height * in.width > 1) {
    return at.error("", "group_norm of a flattened image is not supported: put it before flatten");
  }
  // The check of the file cannot do this, because it does not know the shape of the input.
  if (in.channels % norm.groups() != 0) {
    return at.error("groups", absl::StrCat("groups is ", norm.groups(), ", its input has ", in.channels,
                                           " channels: all groups must have as many"));
  }
  FillNorm(
      {.pixels = in.height * in.width, .channels = in.channels, .groups = norm.groups(), .epsilon = norm.epsilon()},
      {in.channels}, layer, tensors);
  return absl::OkStatus();
}

// layer_norm

absl::Status CheckLayerNorm(const LayerCheck& at) { return CheckEpsilon(at, at.layer.layer_norm().epsilon()); }

absl::Status FillLayerNorm(const LayerFill& at, GraphLayer* layer, std::vector<TensorSpec>* tensors) {
  const SampleShape& in = layer->in;
  if (in.flat && in.height * in.width > 1) {
    return at.error("", "layer_norm of a flattened image is not supported: put it before flatten");
  }
  const size_t first = tensors->size();
  // One group of one pixel, whose channels are all values.
  FillNorm({.pixels = 1, .channels = in.elements(), .groups = 1, .epsilon = at.layer.layer_norm().epsilon()},
           {in.channels}, layer, tensors);
  for (size_t t = first; !in.flat && t < tensors->size(); ++t) {
    (*tensors)[t].dims = {in.height, in.width, in.channels};
    (*tensors)[t].torch_axes = {2, 0, 1};
  }
  return absl::OkStatus();
}

// dropout

absl::Status CheckDropout(const LayerCheck& at) {
  const float rate = at.layer.dropout().rate();
  if (rate >= 0 && rate < 1) return absl::OkStatus();
  return at.error("rate", absl::StrCat("rate is ", rate, ", it must be 0 or more and below 1"));
}

absl::Status FillDropout(const LayerFill& at, GraphLayer* layer, std::vector<TensorSpec>*) {
  layer->kind = LayerKind::kDropout;
  layer->works_in_place = true;
  layer->rate = at.layer.dropout().rate();
  return absl::OkStatus();
}

absl::Status FillAdd(const LayerFill& at, GraphLayer* layer, std::vector<TensorSpec>*) {
  layer->kind = LayerKind::kAdd;
  layer->activation = ActivationOf(at.layer.add().relu());
  // Both shapes must be equal. PyTorch would broadcast one of them, and a model with a wrong shape would train.
  if (at.inputs[0] == at.inputs[1]) return absl::OkStatus();
  return at.error(
      "input", absl::StrCat("adds ", ToString(at.inputs[0]), " (", at.input_names[0], ") and ", ToString(at.inputs[1]),
                            " (", at.input_names[1], "): both must have one shape"));
}

absl::Status FillConcat(const LayerFill& at, GraphLayer* layer, std::vector<TensorSpec>*) {
  const SampleShape& first = at.inputs[0];
  layer->out.channels = 0;
  for (size_t i = 0; i < at.inputs.size(); ++i) {
    const SampleShape& in = at.inputs[i];
    // In memory the pixels of the inputs would alternate; PyTorch would put one image after the other.
    if (in.flat && in.height * in.width > 1) {
      return at.error("", "concat of a flattened image is not supported: put it before flatten");
    }
    const auto joins = [&](absl::string_view reason) {
      return at.error("input", absl::StrCat("joins ", ToString(first), " (", at.input_names[0], ") and ", ToString(in),
                                            " (", at.input_names[i], "): ", reason));
    };
    // The channels of one pixel are neighbours in memory, so inputs are joined pixel by pixel.
    if (in.height != first.height || in.width != first.width) return joins("all must have one height and width");
    if (in.flat != first.flat) {
      return joins(absl::StrCat("all must be flat or none, put a flatten layer after ",
                                in.flat ? at.input_names[0] : at.input_names[i]));
    }
    layer->out.channels += in.channels;
  }
  int64_t offset = 0;
  for (const SampleShape& in : at.inputs) {
    layer->operations.push_back(ConcatPartSpec{.batch = 1,
                                               .pixels = in.height * in.width,
                                               .channels = in.channels,
                                               .out_channels = layer->out.channels,
                                               .offset = offset});
    offset += in.channels;
  }
  return absl::OkStatus();
}

absl::Status FillFlatten(const LayerFill&, GraphLayer* layer, std::vector<TensorSpec>*) {
  layer->kind = LayerKind::kFlatten;
  layer->out.flat = true;
  return absl::OkStatus();
}

struct Row {
  v1::Layer::KindCase kind;
  LayerType type;
};

constexpr Row kRows[] = {
    {v1::Layer::kConv2D, {1, CheckConv2d, FillConv2d}},
    {v1::Layer::kDense, {1, CheckDense, FillDense}},
    {v1::Layer::kRelu, {1, nullptr, FillRelu}},
    {v1::Layer::kMaxPool, {1, CheckMaxPool, FillMaxPool}},
    {v1::Layer::kGlobalAveragePool, {1, nullptr, FillGlobalAveragePool}},
    {v1::Layer::kBatchNorm, {1, CheckBatchNorm, FillBatchNorm}},
    {v1::Layer::kDropout, {1, CheckDropout, FillDropout}},
    {v1::Layer::kAdd, {2, nullptr, FillAdd}},
    {v1::Layer::kFlatten, {1, nullptr, FillFlatten}},
    {v1::Layer::kActivation, {1, CheckActivation, FillActivation}},
    {v1::Layer::kScale, {1, CheckScale, FillScale}},
    {v1::Layer::kAveragePool, {1, CheckAveragePool, FillAveragePool}},
    {v1::Layer::kConcat, {kTwoOrMore, nullptr, FillConcat}},
    {v1::Layer::kGroupNorm, {1, CheckGroupNorm, FillGroupNorm}},
    {v1::Layer::kLayerNorm, {1, CheckLayerNorm, FillLayerNorm}},
};

}  // namespace

std::string ToString(const SampleShape& shape) {
  if (shape.flat) return absl::StrCat(shape.elements(), " (flat)");
  return absl::StrCat(shape.height, " x ", shape.width, " x ", shape.channels);
}

const LayerType* LayerTypeOf(const v1::Layer& layer) {
  for (const Row& row : kRows) {
    if (row.kind == layer.kind_case()) return &row.type;
  }
  return nullptr;
}

GraphLayer ActivationAfter(const GraphLayer& layer) {
  GraphLayer after{.name = layer.name, .number = layer.number, .in = layer.out, .out = layer.out};
  after.first_tensor = layer.first_tensor + layer.tensor_count;
  if (layer.relu_after) {
    after.kind = LayerKind::kRelu;
    after.works_in_place = true;
  } else {
    FillFunction(*layer.then, &after);
  }
  return after;
}

std::string LayerKindNames() {
  const google::protobuf::OneofDescriptor& kinds = *v1::Layer::descriptor()->FindOneofByName("kind");
  std::string names;
  for (int k = 0; k < kinds.field_count(); ++k) {
    const bool is_last = k + 1 == kinds.field_count();
    absl::StrAppend(&names, k == 0 ? "" : is_last ? " or " : ", ", kinds.field(k)->name());
  }
  return names;
}

}  // namespace starring
