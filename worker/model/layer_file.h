// A layer file: text in the format of proto/starring/v1/layer_file.proto, checked as far as it can be without an
// image's shape, and with the place of each layer kept for messages. Keeps protobuf out of this header.
//
// Thread safety: immutable after Load; any thread may call any method.
#ifndef STARRING_WORKER_MODEL_LAYER_FILE_H_
#define STARRING_WORKER_MODEL_LAYER_FILE_H_

#include <memory>
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
  // `model` is a shipped model's name (logreg, mlp, lenet5, mnist_cnn, resnet20) or a path (anything with '/' or '.').
  // Shipped files are compiled into the binary, so that they are found from any working directory.
  // NotFound lists the shipped names; otherwise as Parse.
  static absl::StatusOr<LayerFile> Load(absl::string_view model);

  // InvalidArgument "FILE:LINE:COLUMN: reason", or "FILE:LINE:COLUMN: layer NAME: reason", on text that is no layer
  // file, a repeated or missing name, a layer without a kind, an input that is no layer above, an output that nobody
  // reads, or a number out of range. Lines and columns count from 1.
  static absl::StatusOr<LayerFile> Parse(absl::string_view text, absl::string_view file_name);

  const v1::ModelDefinition& definition() const;
  const std::string& file_name() const;

  // InvalidArgument "FILE:LINE:COLUMN: layer NAME: `reason`". The place is that of `field` ("kernel", "input", ...)
  // where the file sets it, else the layer's kind, else the layer.
  absl::Status LayerError(int layer, absl::string_view field, absl::string_view reason) const;

 private:
  struct Content;
  explicit LayerFile(std::shared_ptr<const Content> content);

  std::shared_ptr<const Content> content_;  // shared: copies of a layer file are cheap and immutable
};

}  // namespace starring

#endif  // STARRING_WORKER_MODEL_LAYER_FILE_H_
