#include <cctype>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "proto/starring/v1/layer_file.pb.h"
#include "worker/model/layer_file.h"

namespace starring {
namespace {

using LayerNumbers = std::map<std::string, int, std::less<>>;

// One layer of a file, for error messages.
struct Place {
  const LayerFile* file;
  int layer;
  bool is_last() const { return layer + 1 == file->definition().layer_size(); }
  absl::Status Error(absl::string_view field, absl::string_view reason) const {
    return file->LayerError(layer, field, reason);
  }
};

struct Bounds {
  int64_t lowest;
  int64_t highest;
};

absl::Status CheckNumber(const Place& place, absl::string_view field, int64_t value, const Bounds& bounds) {
  if (value >= bounds.lowest && value <= bounds.highest) return absl::OkStatus();
  return place.Error(field,
                     absl::StrCat(field, " is ", value, ", it must be from ", bounds.lowest, " to ", bounds.highest));
}

absl::Status CheckName(const Place& place, const std::string& name, const LayerNumbers& seen) {
  if (name.empty()) return place.Error("name", "has no name");
  if (name == "input") return place.Error("name", "the name \"input\" is the image's, choose another");
  if (std::ssize(name) > kLayerNameBytesMax) {
    return place.Error(
        "name", absl::StrCat("the name has ", name.size(), " bytes, at most ", kLayerNameBytesMax, " are allowed"));
  }
  // Names become parts of tensor names, of trace events and of messages.
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.') continue;
    return place.Error("name", absl::StrCat("the name has the character '", std::string(1, c),
                                            "', allowed are letters, digits, '_', '-' and '.'"));
  }
  // Tensors are named after their layers, so two layers of one name would share tensors in a checkpoint.
  const auto earlier = seen.find(name);
  if (earlier == seen.end()) return absl::OkStatus();
  return place.Error(
      "name", absl::StrCat("the name is used by two layers, numbers ", earlier->second + 1, " and ", place.layer + 1));
}

absl::Status CheckInputs(const Place& place, const v1::Layer& layer, const LayerNumbers& above,
                         const LayerNumbers& all) {
  const int wanted = layer.kind_case() == v1::Layer::kAdd ? 2 : 1;
  // A layer that names no input reads the layer above it. An add must name both inputs.
  if (layer.input_size() != wanted && (wanted == 2 || layer.input_size() > 1)) {
    return place.Error("input", absl::StrCat("has ", layer.input_size(), " inputs, ",
                                             wanted == 2 ? "add needs 2" : "this kind of layer takes 1"));
  }
  for (const std::string& input : layer.input()) {
    // Only layers above may be read, so that every input is ready when a layer runs. The messages below tell a cycle, a
    // wrong order and a wrong name apart.
    if (input == "input" || above.contains(input)) continue;
    if (input == layer.name()) return place.Error("input", "reads its own output, which makes a cycle");
    if (all.contains(input)) {
      return place.Error("input", absl::StrCat("reads layer ", input,
                                               ", which comes below it: put layers in forward order, without cycles"));
    }
    return place.Error("input", absl::StrCat("reads layer ", input, ", which does not exist"));
  }
  return absl::OkStatus();
}

constexpr Bounds kChannelBounds{1, kLayerWidthMax};
constexpr Bounds kKernelBounds{1, kLayerKernelMax};
// 0 is a stride that the file does not give: 1 for a convolution, the kernel for a pool.
constexpr Bounds kStrideBounds{0, kLayerKernelMax};
constexpr Bounds kPaddingBounds{0, kLayerKernelMax};

absl::Status CheckBatchNorm(const Place& place, const v1::BatchNorm& norm) {
  // The negation also refuses NaN, which the text format can write.
  if (!(norm.epsilon() >= 0) || std::isinf(norm.epsilon())) {
    return place.Error("epsilon", absl::StrCat("epsilon is ", norm.epsilon(), ", it must be 0 or more (0 means 1e-5)"));
  }
  if (!(norm.momentum() >= 0 && norm.momentum() <= 1)) {
    return place.Error("momentum",
                       absl::StrCat("momentum is ", norm.momentum(), ", it must be from 0 to 1 (0 means 0.1)"));
  }
  return absl::OkStatus();
}

absl::Status CheckKind(const Place& place, const v1::Layer& layer) {
  switch (layer.kind_case()) {
    case v1::Layer::kConv2D:
      RETURN_IF_ERROR(CheckNumber(place, "out_channels", layer.conv2d().out_channels(), kChannelBounds));
      RETURN_IF_ERROR(CheckNumber(place, "kernel", layer.conv2d().kernel(), kKernelBounds));
      RETURN_IF_ERROR(CheckNumber(place, "stride", layer.conv2d().stride(), kStrideBounds));
      return CheckNumber(place, "padding", layer.conv2d().padding(), kPaddingBounds);
    case v1::Layer::kDense:
      // The last layer may leave its units to the data.
      if (layer.dense().units() == 0 && place.is_last()) return absl::OkStatus();
      return CheckNumber(place, "units", layer.dense().units(), kChannelBounds);
    case v1::Layer::kMaxPool:
      RETURN_IF_ERROR(CheckNumber(place, "kernel", layer.max_pool().kernel(), kKernelBounds));
      RETURN_IF_ERROR(CheckNumber(place, "stride", layer.max_pool().stride(), kStrideBounds));
      // With more padding, some windows would see nothing but padding, and have no maximum.
      return CheckNumber(place, "padding", layer.max_pool().padding(), {0, layer.max_pool().kernel() / 2});
    case v1::Layer::kBatchNorm:
      return CheckBatchNorm(place, layer.batch_norm());
    case v1::Layer::kDropout:
      if (layer.dropout().rate() >= 0 && layer.dropout().rate() < 1) return absl::OkStatus();
      return place.Error("rate",
                         absl::StrCat("rate is ", layer.dropout().rate(), ", it must be 0 or more and below 1"));
    case v1::Layer::kRelu:
    case v1::Layer::kGlobalAveragePool:
    case v1::Layer::kAdd:
    case v1::Layer::kFlatten:
      return absl::OkStatus();
    case v1::Layer::KIND_NOT_SET:
      break;
  }
  return place.Error("name",
                     "has no kind: add conv2d, dense, relu, max_pool, global_average_pool, batch_norm, dropout, add or "
                     "flatten");
}

// An output that no layer reads is a mistake in the file: its layer would have no gradient, and backward could not run.
absl::Status CheckAllRead(const LayerFile& file, const LayerNumbers& numbers) {
  const v1::ModelDefinition& definition = file.definition();
  std::vector<bool> read(definition.layer_size(), false);
  for (int l = 0; l < definition.layer_size(); ++l) {
    if (definition.layer(l).input_size() == 0 && l > 0) read[l - 1] = true;
    for (const std::string& input : definition.layer(l).input()) {
      if (input != "input") read[numbers.at(input)] = true;
    }
  }
  // The last layer's output is read by the loss.
  for (int l = 0; l + 1 < definition.layer_size(); ++l) {
    if (!read[l]) return file.LayerError(l, "name", "its output is read by no layer");
  }
  return absl::OkStatus();
}

absl::Status CheckLoss(const LayerFile& file) {
  if (!file.definition().has_loss()) return absl::OkStatus();
  const v1::Loss& loss = file.definition().loss();
  switch (loss.kind_case()) {
    case v1::Loss::kSoftmax: {
      const float smoothing = loss.softmax().label_smoothing();
      // At 1 the labels would not matter. The form of the condition also refuses NaN.
      if (smoothing >= 0 && smoothing < 1) return absl::OkStatus();
      return file.LossError("label_smoothing",
                            absl::StrCat("label_smoothing is ", smoothing, ", it must be 0 or more and below 1"));
    }
    case v1::Loss::kMse:
    case v1::Loss::kBce:
      return absl::OkStatus();
    case v1::Loss::KIND_NOT_SET:
      break;
  }
  return file.LossError("", "has no kind: write loss { softmax {} }, loss { mse {} } or loss { bce {} }");
}

}  // namespace

absl::Status CheckLayers(const LayerFile& file) {
  const v1::ModelDefinition& definition = file.definition();
  if (definition.layer_size() > kLayerCountMax) {
    return file.LayerError(
        kLayerCountMax, "",
        absl::StrCat("the file has ", definition.layer_size(), " layers, at most ", kLayerCountMax, " are allowed"));
  }
  LayerNumbers all;
  // All names are collected before the checks, so that a layer that comes later can be told from one that does not
  // exist.
  for (int l = 0; l < definition.layer_size(); ++l) all.emplace(definition.layer(l).name(), l);
  LayerNumbers above;
  for (int l = 0; l < definition.layer_size(); ++l) {
    const v1::Layer& layer = definition.layer(l);
    const Place place{&file, l};
    RETURN_IF_ERROR(CheckName(place, layer.name(), above));
    RETURN_IF_ERROR(CheckKind(place, layer));
    RETURN_IF_ERROR(CheckInputs(place, layer, above, all));
    above.emplace(layer.name(), l);
  }
  RETURN_IF_ERROR(CheckAllRead(file, above));
  return CheckLoss(file);
}

}  // namespace starring
