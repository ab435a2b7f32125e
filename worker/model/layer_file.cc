#include "worker/model/layer_file.h"

#include <fcntl.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/security/sha256.h"
#include "proto/starring/v1/layer_file.pb.h"

namespace starring {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::TextFormat;

// Lines and columns count from 1, as in editors; protobuf counts from 0.
struct SourcePosition {
  int line = 1;
  int column = 1;
};

// The positions of one layer by name: "layer" is the layer itself, "kind" its kind, any other name a field of either.
// The loss has them too; there "loss" is the loss itself.
using LayerPositions = std::map<std::string, SourcePosition, std::less<>>;

// Keeps the first error: those that follow are mostly consequences of it.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int column, const std::string& message) override {
    if (!error_) error_ = Error{{line + 1, column + 1}, message};
  }
  struct Error {
    SourcePosition position;
    std::string message;
  };
  const std::optional<Error>& error() const { return error_; }

 private:
  std::optional<Error> error_;
};

absl::Status ErrorAt(absl::string_view file_name, SourcePosition position, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat(file_name, ":", position.line, ":", position.column, ": ", message));
}

// The parser's message; of a field that there is not, such as a layer's kind, with those that there are.
std::string ExplainParseError(absl::string_view message) {
  absl::string_view rest = message;
  if (!absl::ConsumePrefix(&rest, "Message type \"")) return std::string(message);
  const std::vector<std::string> words = absl::StrSplit(rest, '"');  // TYPE, has no field named, FIELD, .
  const google::protobuf::Descriptor* const type =
      v1::ModelDefinition::descriptor()->file()->pool()->FindMessageTypeByName(words[0]);
  if (type == nullptr || words.size() < 3 || words[1] != " has no field named ") return std::string(message);
  std::vector<absl::string_view> known;
  for (int i = 0; i < type->field_count(); ++i) known.push_back(type->field(i)->name());
  return absl::StrCat(type->name(), " has no field \"", words[2],
                      "\", its fields are: ", known.empty() ? "none" : absl::StrJoin(known, ", "));
}

// Adds the position of every field that the text sets in a message of `type`, as `tree` has recorded it.
void AddPositions(const google::protobuf::Descriptor& type, const TextFormat::ParseInfoTree& tree,
                  LayerPositions* positions) {
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* field = type.field(i);
    // The parser's tree numbers the values of repeated fields; -1 is a field that has one. The first value is named.
    const TextFormat::ParseLocation location = tree.GetLocation(field, field->is_repeated() ? 0 : -1);
    if (location.line >= 0) positions->emplace(field->name(), SourcePosition{location.line + 1, location.column + 1});
  }
}

// Messages do not know where they were in the text. The parser's tree does, but it ends with Parse, so the positions
// are copied from it.
std::vector<LayerPositions> PositionsOf(const v1::ModelDefinition& definition, const TextFormat::ParseInfoTree& tree) {
  const FieldDescriptor* layer_field = v1::ModelDefinition::descriptor()->FindFieldByName("layer");
  const google::protobuf::OneofDescriptor* kind_oneof = v1::Layer::descriptor()->FindOneofByName("kind");
  std::vector<LayerPositions> all(definition.layer_size());
  for (int l = 0; l < definition.layer_size(); ++l) {
    const TextFormat::ParseLocation location = tree.GetLocation(layer_field, l);
    all[l]["layer"] = {location.line + 1, location.column + 1};
    const TextFormat::ParseInfoTree* layer_tree = tree.GetTreeForNested(layer_field, l);
    const v1::Layer& layer = definition.layer(l);
    const FieldDescriptor* kind = layer.GetReflection()->GetOneofFieldDescriptor(layer, kind_oneof);
    // An empty layer, or one without a kind, has fewer positions; LayerError then falls back to the layer's.
    if (layer_tree == nullptr) continue;
    AddPositions(*v1::Layer::descriptor(), *layer_tree, &all[l]);
    if (kind == nullptr) continue;
    // The kind is a field of the layer, whose position AddPositions has just added under the field's name.
    all[l]["kind"] = all[l][kind->name()];
    const TextFormat::ParseInfoTree* kind_tree = layer_tree->GetTreeForNested(kind, -1);
    if (kind_tree != nullptr) AddPositions(*kind->message_type(), *kind_tree, &all[l]);
  }
  return all;
}

// Empty without a loss.
LayerPositions LossPositionsOf(const v1::ModelDefinition& definition, const TextFormat::ParseInfoTree& tree) {
  LayerPositions positions;
  if (!definition.has_loss()) return positions;
  const FieldDescriptor* loss_field = v1::ModelDefinition::descriptor()->FindFieldByName("loss");
  const TextFormat::ParseLocation location = tree.GetLocation(loss_field, -1);
  positions["loss"] = {location.line + 1, location.column + 1};
  const v1::Loss& loss = definition.loss();
  const FieldDescriptor* kind =
      loss.GetReflection()->GetOneofFieldDescriptor(loss, v1::Loss::descriptor()->FindOneofByName("kind"));
  const TextFormat::ParseInfoTree* loss_tree = tree.GetTreeForNested(loss_field, -1);
  if (loss_tree == nullptr || kind == nullptr) return positions;
  AddPositions(*v1::Loss::descriptor(), *loss_tree, &positions);
  positions["kind"] = positions[kind->name()];
  const TextFormat::ParseInfoTree* kind_tree = loss_tree->GetTreeForNested(kind, -1);
  if (kind_tree != nullptr) AddPositions(*kind->message_type(), *kind_tree, &positions);
  return positions;
}

std::string ShippedNames() {
  std::vector<absl::string_view> names;
  for (const ShippedModel& model : ShippedModels()) names.push_back(model.name);
  return absl::StrJoin(names, ", ");
}

absl::Status FileError(const std::string& path, int error) {
  const std::string message = absl::StrCat("layer file ", path, ": ", std::strerror(error));
  if (error == ENOENT || error == ENOTDIR) {
    return absl::NotFoundError(absl::StrCat(message, ": give the path of a layer file or one of ", ShippedNames()));
  }
  return absl::InvalidArgumentError(message);
}

absl::StatusOr<std::string> ReadLayerFile(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return FileError(path, errno);
  // One byte more than allowed, so that a file of any size is refused without reading all of it.
  std::string text(kLayerFileBytesMax + 1, '\0');
  int64_t size = 0;
  int error = 0;
  while (size < std::ssize(text)) {
    const ssize_t got = read(file, text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) error = errno;
    if (got <= 0) break;
    size += got;
  }
  close(file);
  if (error != 0) return FileError(path, error);
  if (size > kLayerFileBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer file ", path, " is longer than ", kLayerFileBytesMax, " bytes, which no layer file needs"));
  }
  text.resize(size);
  return text;
}

}  // namespace

struct LayerFile::Content {
  std::string file_name;
  std::string text;
  v1::ModelDefinition definition;
  std::vector<LayerPositions> positions;  // by layer
  LayerPositions loss_positions;
};

LayerFile::LayerFile(std::shared_ptr<const Content> content) : content_(std::move(content)) {}

const v1::ModelDefinition& LayerFile::definition() const { return content_->definition; }
const std::string& LayerFile::file_name() const { return content_->file_name; }
const std::string& LayerFile::text() const { return content_->text; }

std::string LayerFile::Digest(int64_t outputs) const {
  v1::ModelDefinition layers = content_->definition;
  // The model's name changes nothing that is computed, so files that differ in it alone have one digest.
  layers.clear_name();
  v1::Layer& last = *layers.mutable_layer(layers.layer_size() - 1);
  if (last.has_dense() && last.dense().units() == 0) last.mutable_dense()->set_units(static_cast<int32_t>(outputs));
  // So a file that writes the default loss has the digest of one that leaves it out.
  if (layers.loss().has_softmax() && layers.loss().softmax().label_smoothing() == 0) layers.clear_loss();
  // A message without maps has one serialisation: fields in the order of their numbers.
  const std::string bytes = layers.SerializeAsString();
  return Sha256Hex(std::as_bytes(std::span(bytes)));
}

absl::StatusOr<LayerFile> LayerFile::Load(absl::string_view model) {
  // A name has neither '/' nor '.', so a file in the working directory cannot hide a shipped model.
  if (model.find_first_of("/.") == absl::string_view::npos) {
    for (const ShippedModel& shipped : ShippedModels()) {
      if (shipped.name == model) return Parse(shipped.text, absl::StrCat(shipped.name, ".textproto"));
    }
    return absl::NotFoundError(absl::StrCat("there is no model named \"", model, "\": use one of ", ShippedNames(),
                                            ", or the path of a layer file (with a '/' or a '.')"));
  }
  const std::string path(model);
  ASSIGN_OR_RETURN(const std::string text, ReadLayerFile(path));
  return Parse(text, path);
}

absl::StatusOr<LayerFile> LayerFile::Parse(absl::string_view text, absl::string_view file_name) {
  auto content = std::make_shared<Content>();
  content->file_name = std::string(file_name);
  content->text = std::string(text);
  FirstError errors;
  TextFormat::ParseInfoTree tree;
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  // The locations are what lets a later check, of a shape for instance, name line and column.
  parser.WriteLocationsTo(&tree);
  if (!parser.ParseFromString(std::string(text), &content->definition)) {
    if (errors.error()) {
      return ErrorAt(file_name, errors.error()->position, ExplainParseError(errors.error()->message));
    }
    return ErrorAt(file_name, {}, "not a layer file");
  }
  if (content->definition.layer_size() == 0) {
    return ErrorAt(file_name, {}, "there is no layer: write layer { name: \"fc1\" dense {} }");
  }
  content->positions = PositionsOf(content->definition, tree);
  content->loss_positions = LossPositionsOf(content->definition, tree);
  LayerFile file(std::move(content));
  // CheckLayers needs the positions, to name line and column.
  RETURN_IF_ERROR(CheckLayers(file));
  return file;
}

absl::Status LayerFile::LayerError(int layer, absl::string_view field, absl::string_view reason) const {
  const LayerPositions& positions = content_->positions[layer];
  auto place = positions.find(field);
  // A field that the text leaves out has no position: the layer's kind is the nearest place to look.
  if (place == positions.end()) place = positions.find("kind");
  if (place == positions.end()) place = positions.find("layer");
  const std::string& name = definition().layer(layer).name();
  return ErrorAt(
      file_name(), place->second,
      name.empty() ? absl::StrCat("layer ", layer + 1, ": ", reason) : absl::StrCat("layer ", name, ": ", reason));
}

absl::Status LayerFile::LossError(absl::string_view field, absl::string_view reason) const {
  const LayerPositions& positions = content_->loss_positions;
  auto place = positions.find(field);
  if (place == positions.end()) place = positions.find("kind");
  if (place == positions.end()) place = positions.find("loss");
  return ErrorAt(file_name(), place->second, absl::StrCat("loss: ", reason));
}

}  // namespace starring
