// A layer file: text in the format of proto/starring/v1/layer_file.proto.
//
// Everything that does not depend on an image's shape has been checked. The position of each layer is kept for
// messages. The message's type is only declared here, so that this header does not include protobuf.
//
// Thread safety: immutable after Load; any thread may call any method.
#ifndef STARRING_WORKER_MODEL_LAYER_FILE_H_
#define STARRING_WORKER_MODEL_LAYER_FILE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace starring::v1 {
class ModelDefinition;
}

namespace starring {

class LayerFile {
 public:
  // `model` is the name of a shipped model, such as lenet5, or a path, which has a '/' or '.'. NotFound lists the
  // shipped names; otherwise the errors are those of Parse.
  static absl::StatusOr<LayerFile> Load(absl::string_view model);

  // InvalidArgument "FILE:LINE:COLUMN: reason", or "FILE:LINE:COLUMN: layer NAME: reason", for text that is not a layer
  // file, and for everything that CheckLayers refuses. Lines and columns count from 1.
  static absl::StatusOr<LayerFile> Parse(absl::string_view text, absl::string_view file_name);

  const v1::ModelDefinition& definition() const;
  const std::string& file_name() const;
  const std::string& text() const;

  // SHA-256 (hexadecimal) of what the file means for data that need `outputs` outputs: its layers. Files that differ in
  // comments, in the order of fields or in the model's own name have the same digest. So have a last layer that leaves
  // `units` to the data, and one that says their number. A loss that is the default one counts as left out.
  std::string Digest(int64_t outputs) const;

  // InvalidArgument "FILE:LINE:COLUMN: layer NAME: `reason`". The position is that of `field` ("kernel", "input", ...)
  // if the file sets it, otherwise that of the layer's kind, otherwise that of the layer.
  absl::Status LayerError(int layer, absl::string_view field, absl::string_view reason) const;

  // InvalidArgument "FILE:LINE:COLUMN: loss: `reason`", at `field` of the loss if the file sets it, otherwise at the
  // loss's kind, otherwise at the loss. REQUIRES: the file has a loss.
  absl::Status LossError(absl::string_view field, absl::string_view reason) const;

 private:
  struct Content;
  explicit LayerFile(std::shared_ptr<const Content> content);

  std::shared_ptr<const Content> content_;  // shared: copies of a layer file are cheap and immutable
};

// The part of Parse that reads the meaning of a file: names, inputs, kinds, and the ranges of numbers. Returns the
// first error of a layer in file order as a LayerError: a name that is repeated or missing, a layer without a kind, an
// input that is not a layer above, an output that no layer reads, a number out of range. After OK, every input is
// "input" or the name of a layer above, and every layer but the last is read by another. A wrong loss is a LossError,
// which comes after those of layers.
absl::Status CheckLayers(const LayerFile& file);

// A layer file of worker/model/models. They are compiled into the program (rule :embed_models), so that they are found
// from any working directory.
struct ShippedModel {
  absl::string_view name;  // "lenet5"
  absl::string_view text;  // the content of lenet5.textproto
};

// In alphabetical order.
std::span<const ShippedModel> ShippedModels();

}  // namespace starring

#endif  // STARRING_WORKER_MODEL_LAYER_FILE_H_
