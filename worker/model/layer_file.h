// A layer file: text in the format of proto/starring/v1/layer_file.proto. Keeps protobuf out of this header.
#ifndef STARRING_WORKER_MODEL_LAYER_FILE_H_
#define STARRING_WORKER_MODEL_LAYER_FILE_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace starring::v1 {
class ModelDefinition;
}

namespace starring {

class LayerFile {
 public:
  // `model` is a shipped model's name (logreg, mlp, lenet5, mnist_cnn, resnet20) or a path (anything with '/' or '.').
  // Shipped files are compiled into the binary, so that they are found from any working directory.
  // InvalidArgument with file, line and reason; NotFound lists the shipped names.
  static absl::StatusOr<LayerFile> Load(std::string_view model);
  static absl::StatusOr<LayerFile> Parse(std::string_view text, std::string_view file_name);

  const v1::ModelDefinition& definition() const { return *definition_; }
  const std::string& file_name() const { return file_name_; }

 private:
  std::shared_ptr<const v1::ModelDefinition> definition_;  // shared: copies of a layer file are cheap and immutable
  std::string file_name_;
};

}  // namespace starring

#endif  // STARRING_WORKER_MODEL_LAYER_FILE_H_
