#include "kernels/shape_checks.h"

#include <initializer_list>
#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace starring {
namespace {

struct NamedSize {
  const char* name;
  int64_t value;
};

// This check comes before Fits, which divides by the product of the sizes so far.
absl::Status AllAtLeast(int64_t minimum, std::initializer_list<NamedSize> sizes) {
  for (const NamedSize& size : sizes) {
    if (size.value < minimum) {
      return absl::InvalidArgumentError(absl::StrCat(size.name, " is ", size.value, ": must be at least ", minimum));
    }
  }
  return absl::OkStatus();
}

// The product of positive sizes is within a tensor's limit. Divides the limit instead of multiplying the sizes, whose
// product may not fit in 64 bits.
absl::Status Fits(const char* tensor, std::initializer_list<int64_t> sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) {
    if (size > kTensorElementsMax / product) {
      std::string shape;
      for (const int64_t s : sizes) absl::StrAppend(&shape, shape.empty() ? "" : " x ", s);
      return absl::InvalidArgumentError(
          absl::StrCat(tensor, " has ", shape, " elements: at most ", kTensorElementsMax, " are possible"));
    }
    product *= size;
  }
  return absl::OkStatus();
}

// One axis of a window that slides over a padded input.
struct Axis {
  const char* name;
  int64_t in, kernel, stride, padding;
};

// This check comes before the output's size is used: if the kernel did not fit, out_height() or out_width() could be
// zero or negative.
absl::Status CheckAxis(const Axis& axis) {
  if (axis.in + 2 * axis.padding < axis.kernel) {
    return absl::InvalidArgumentError(absl::StrCat("kernel_", axis.name, " is ", axis.kernel, ", in_", axis.name,
                                                   " with padding ", axis.in + 2 * axis.padding,
                                                   ": the kernel must fit into the padded input"));
  }
  return absl::OkStatus();
}

// This check is for max pools. A window that sees padding only would have the maximum -infinity. A convolution has its
// bias there, and an average pool 0.
absl::Status CheckSeesInput(const Axis& axis) {
  if (axis.padding >= axis.kernel) {
    return absl::InvalidArgumentError(absl::StrCat("padding_", axis.name, " is ", axis.padding, " and kernel_",
                                                   axis.name, " ", axis.kernel,
                                                   ": padding must be smaller, else a window sees padding only"));
  }
  return absl::OkStatus();
}

absl::Status CheckOperation(const Conv2dSpec& s) {
  RETURN_IF_ERROR(AllAtLeast(1, {{"batch", s.batch},
                                 {"in_height", s.in_height},
                                 {"in_width", s.in_width},
                                 {"in_channels", s.in_channels},
                                 {"out_channels", s.out_channels},
                                 {"kernel_height", s.kernel_height},
                                 {"kernel_width", s.kernel_width},
                                 {"stride_height", s.stride_height},
                                 {"stride_width", s.stride_width}}),
                  "conv2d");
  RETURN_IF_ERROR(AllAtLeast(0, {{"padding_height", s.padding_height}, {"padding_width", s.padding_width}}), "conv2d");
  RETURN_IF_ERROR(Fits("the weight", {s.out_channels, s.kernel_height, s.kernel_width, s.in_channels}), "conv2d");
  RETURN_IF_ERROR(CheckAxis({"height", s.in_height, s.kernel_height, s.stride_height, s.padding_height}), "conv2d");
  RETURN_IF_ERROR(CheckAxis({"width", s.in_width, s.kernel_width, s.stride_width, s.padding_width}), "conv2d");
  // The padding counts, because devices count places with the padding included: our tiles copy an image into padded
  // memory, and the kernels of a GPU number pixels from where the padding begins.
  RETURN_IF_ERROR(Fits("the padded input",
                       {s.batch, s.in_height + 2 * s.padding_height, s.in_width + 2 * s.padding_width, s.in_channels}),
                  "conv2d");
  return Annotate(Fits("the output", {s.batch, s.out_height(), s.out_width(), s.out_channels}), "conv2d");
}

absl::Status CheckOperation(const DenseSpec& s) {
  RETURN_IF_ERROR(AllAtLeast(1, {{"batch", s.batch}, {"in", s.in}, {"out", s.out}}), "dense");
  RETURN_IF_ERROR(Fits("the weight", {s.out, s.in}), "dense");
  RETURN_IF_ERROR(Fits("the input", {s.batch, s.in}), "dense");
  return Annotate(Fits("the output", {s.batch, s.out}), "dense");
}

// A window that slides over each channel by itself.
absl::Status CheckWindow(const Pool2dSpec& s) {
  RETURN_IF_ERROR(AllAtLeast(1, {{"batch", s.batch},
                                 {"in_height", s.in_height},
                                 {"in_width", s.in_width},
                                 {"channels", s.channels},
                                 {"kernel_height", s.kernel_height},
                                 {"kernel_width", s.kernel_width},
                                 {"stride_height", s.stride_height},
                                 {"stride_width", s.stride_width}}));
  RETURN_IF_ERROR(AllAtLeast(0, {{"padding_height", s.padding_height}, {"padding_width", s.padding_width}}));
  for (const Axis& axis : {Axis{"height", s.in_height, s.kernel_height, s.stride_height, s.padding_height},
                           Axis{"width", s.in_width, s.kernel_width, s.stride_width, s.padding_width}}) {
    RETURN_IF_ERROR(CheckAxis(axis));
  }
  // A place in the window is numbered in 32 bits at most.
  RETURN_IF_ERROR(Fits("the window", {s.kernel_height, s.kernel_width}));
  RETURN_IF_ERROR(Fits("the padded input",
                       {s.batch, s.in_height + 2 * s.padding_height, s.in_width + 2 * s.padding_width, s.channels}));
  return Fits("the output", {s.batch, s.out_height(), s.out_width(), s.channels});
}

absl::Status CheckOperation(const Pool2dSpec& s) {
  RETURN_IF_ERROR(CheckWindow(s), "max pool");
  for (const Axis& axis : {Axis{"height", s.in_height, s.kernel_height, s.stride_height, s.padding_height},
                           Axis{"width", s.in_width, s.kernel_width, s.stride_width, s.padding_width}}) {
    RETURN_IF_ERROR(CheckSeesInput(axis), "max pool");
  }
  return absl::OkStatus();
}

absl::Status CheckOperation(const AveragePool2dSpec& s) { return Annotate(CheckWindow(s), "average pool"); }

absl::Status CheckOperation(const DepthwiseConv2dSpec& s) {
  RETURN_IF_ERROR(CheckWindow(s), "depthwise conv2d");
  return Annotate(Fits("the weight", {s.channels, s.kernel_height, s.kernel_width}), "depthwise conv2d");
}

absl::Status CheckOperation(const GlobalAveragePoolSpec& s) {
  RETURN_IF_ERROR(
      AllAtLeast(1, {{"batch", s.batch}, {"height", s.height}, {"width", s.width}, {"channels", s.channels}}),
      "global average pool");
  return Annotate(Fits("the input", {s.batch, s.height, s.width, s.channels}), "global average pool");
}

absl::Status CheckOperation(const ActivationSpec& s) {
  RETURN_IF_ERROR(AllAtLeast(1, {{"batch", s.batch}, {"sample_elements", s.sample_elements}}), "activation");
  return Annotate(Fits("the input", {s.batch, s.sample_elements}), "activation");
}

absl::Status CheckOperation(const ConcatPartSpec& s) {
  RETURN_IF_ERROR(AllAtLeast(1, {{"batch", s.batch}, {"pixels", s.pixels}, {"channels", s.channels}}), "concat");
  RETURN_IF_ERROR(AllAtLeast(0, {{"offset", s.offset}}), "concat");
  if (s.channels > s.out_channels - s.offset) {
    return absl::InvalidArgumentError(absl::StrCat("concat: channels ", s.offset, " to ", s.offset + s.channels,
                                                   " of an output with ", s.out_channels, ": they must be inside"));
  }
  return Annotate(Fits("the output", {s.batch, s.pixels, s.out_channels}), "concat");
}

absl::Status CheckOperation(const GroupNormSpec& s) {
  RETURN_IF_ERROR(
      AllAtLeast(1, {{"batch", s.batch}, {"pixels", s.pixels}, {"channels", s.channels}, {"groups", s.groups}}),
      "group norm");
  RETURN_IF_ERROR(Fits("the input", {s.batch, s.pixels, s.channels}), "group norm");
  if (s.channels % s.groups != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("group norm: ", s.channels, " channels in ", s.groups, " groups: all groups must have as many"));
  }
  // The comparison is negated, so that a NaN is refused.
  if (!(s.epsilon > 0)) {
    return absl::InvalidArgumentError(absl::StrCat("group norm: epsilon is ", s.epsilon, ": must be above 0"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckShape(const OperationSpec& spec) {
  return std::visit([](const auto& s) { return CheckOperation(s); }, spec);
}

absl::Status CheckShape(const BatchNormSpec& s) {
  RETURN_IF_ERROR(
      AllAtLeast(1, {{"batch", s.batch}, {"height", s.height}, {"width", s.width}, {"channels", s.channels}}),
      "batch norm");
  RETURN_IF_ERROR(Fits("the input", {s.batch, s.height, s.width, s.channels}), "batch norm");
  // The comparison is negated, so that a NaN is refused. Without epsilon a channel whose values are all equal would be
  // divided by zero.
  if (!(s.epsilon > 0)) {
    return absl::InvalidArgumentError(absl::StrCat("batch norm: epsilon is ", s.epsilon, ": must be above 0"));
  }
  if (!(s.momentum >= 0 && s.momentum <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat("batch norm: momentum is ", s.momentum, ": must be in [0, 1]"));
  }
  return absl::OkStatus();
}

absl::Status CheckShape(const DropoutSpec& s) {
  RETURN_IF_ERROR(AllAtLeast(1, {{"batch", s.batch}, {"sample_elements", s.sample_elements}}), "dropout");
  RETURN_IF_ERROR(Fits("the input", {s.batch, s.sample_elements}), "dropout");
  // At rate 1 nothing is kept, and the scale of what is kept would be 1 / 0.
  if (!(s.rate >= 0 && s.rate < 1)) {
    return absl::InvalidArgumentError(absl::StrCat("dropout: rate is ", s.rate, ": must be in [0, 1)"));
  }
  // Philox's counter has 24 bits for the layer, next to the 8 of the purpose (common/arithmetic/philox.h). A larger
  // number would change the purpose, and the mask might repeat other random numbers of the run.
  if (s.stream >= 1u << 24) {
    return absl::InvalidArgumentError(absl::StrCat("dropout: stream is ", s.stream, ": must be below ", 1u << 24));
  }
  return absl::OkStatus();
}

absl::Status CheckShape(const LossSpec& s) {
  RETURN_IF_ERROR(AllAtLeast(1, {{"batch", s.batch}, {"outputs", s.outputs}}), "loss");
  // At 1 the target would be the same for all labels. The form of the condition also refuses NaN.
  if (!(s.label_smoothing >= 0 && s.label_smoothing < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("loss: label_smoothing is ", s.label_smoothing, ": must be in [0, 1)"));
  }
  return Annotate(Fits("the input", {s.batch, s.outputs}), "loss");
}

}  // namespace starring
