#include <google/protobuf/descriptor.h>

#include <cctype>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "proto/starring/v1/layer_file.pb.h"
#include "worker/model/layer_file.h"
#include "worker/model/layer_table.h"

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
  const int wanted = LayerTypeOf(layer)->input_count;
  const int given = layer.input_size();
  // A layer that names no input reads the layer above it. One of several inputs must name them.
  const bool fits = wanted == kTwoOrMore ? given >= 2 : given == wanted || (wanted == 1 && given == 0);
  const auto kind = [&] {
    return v1::Layer::GetReflection()
        ->GetOneofFieldDescriptor(layer, v1::Layer::descriptor()->FindOneofByName("kind"))
        ->name();
  };
  if (!fits) {
    return place.Error(
        "input", absl::StrCat("has ", given, " inputs, ",
                              wanted == 1 ? "this kind of layer takes 1"
                                          : absl::StrCat(kind(), " needs ",
                                                         wanted == kTwoOrMore ? "2 or more" : absl::StrCat(wanted))));
  }
  if (wanted == kTwoOrMore && given > kConcatInputsMax) {
    return place.Error("input", absl::StrCat("has ", given, " inputs, ", kind(), " takes at most ", kConcatInputsMax,
                                             ": join some of them before"));
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

absl::Status CheckKind(const Place& place, const v1::Layer& layer) {
  const LayerType* const type = LayerTypeOf(layer);
  if (type == nullptr) return place.Error("name", absl::StrCat("has no kind: add ", LayerKindNames()));
  if (type->check == nullptr) return absl::OkStatus();
  return type->check({layer, place.is_last(),
                      [&](absl::string_view field, absl::string_view reason) { return place.Error(field, reason); }});
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
