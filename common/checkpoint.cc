#include "common/checkpoint.h"

#include <zlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <span>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/atomic_file.h"
#include "common/check.h"
#include "common/checkpoint_folders.h"
#include "common/limits.h"
#include "common/safetensors.h"
#include "common/sha256.h"
#include "common/status.h"
#include "google/protobuf/util/json_util.h"
#include "proto/starring/v1/checkpoint.pb.h"

namespace starring {
namespace {

namespace fs = std::filesystem;

constexpr char kManifest[] = "manifest.json";
constexpr char kModel[] = "model.safetensors";
constexpr char kOptimizer[] = "optimizer.safetensors";
constexpr char kRunningMean[] = ".running_mean";
constexpr char kBatchesTracked[] = ".num_batches_tracked";

uint32_t Crc32(const std::string& content) {
  return static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(content.data()), content.size()));
}

std::vector<int64_t> TorchShape(const TensorSpec& spec) {
  if (!spec.torch_shape.empty()) return spec.torch_shape;
  if (spec.torch_axes.empty()) return spec.dims;
  std::vector<int64_t> shape;
  for (int axis : spec.torch_axes) shape.push_back(spec.dims[axis]);
  return shape;
}

// Tensors in PyTorch's order, with the memory that their views point into.
class TensorSet {
 public:
  void AddVector(const Layout& layout, std::span<const float> vector, absl::string_view suffix) {
    for (const Tensor& tensor : layout.tensors()) {
      std::vector<float>& values = storage_.emplace_back(tensor.range.size());
      ToTorchOrder(tensor.spec, vector.subspan(tensor.range.begin, tensor.range.size()), values);
      views_[absl::StrCat(tensor.spec.name, suffix)] = {
          .type = TensorType::kFloat32, .shape = TorchShape(tensor.spec), .bytes = std::as_bytes(std::span(values))};
    }
  }

  void AddBuffer(const std::string& name, std::span<const float> values, const int64_t* step) {
    views_[name] = {
        .type = TensorType::kFloat32, .shape = {static_cast<int64_t>(values.size())}, .bytes = std::as_bytes(values)};
    absl::string_view module = name;
    if (!absl::ConsumeSuffix(&module, kRunningMean)) return;
    // PyTorch's load_state_dict misses it otherwise.
    views_[absl::StrCat(module, kBatchesTracked)] = {
        .type = TensorType::kInt64, .shape = {}, .bytes = std::as_bytes(std::span(step, 1))};
  }

  std::string Serialize() const { return SerializeSafetensors(views_); }

 private:
  std::vector<std::vector<float>> storage_;
  std::map<std::string, TensorView> views_;
};

absl::Status AddFile(const std::string& folder, const char* name, const std::string& content,
                     v1::CheckpointManifest& manifest) {
  v1::CheckpointFile& file = *manifest.add_files();
  file.set_name(name);
  file.set_size_bytes(static_cast<int64_t>(content.size()));
  file.set_crc32(Crc32(content));
  return WriteFileAtomically(absl::StrCat(folder, "/", name), content);
}

v1::CheckpointManifest DescribeCheckpoint(const Layout& layout, const Checkpoint& checkpoint) {
  v1::CheckpointManifest manifest;
  manifest.set_step(checkpoint.step);
  manifest.set_epoch(checkpoint.epoch);
  for (const auto& [flag, value] : checkpoint.config) (*manifest.mutable_config())[flag] = value;
  manifest.set_layout_hash(layout.hash());
  manifest.set_parameter_sha256(Sha256Hex(std::as_bytes(std::span(checkpoint.parameters))));
  for (size_t owner = 0; owner < checkpoint.owner_ranges.size(); ++owner) {
    for (const ElementRange& range : checkpoint.owner_ranges[owner]) {
      v1::OwnerRange& out = *manifest.add_owner_ranges();
      out.set_owner(static_cast<int>(owner));
      out.set_begin(range.begin);
      out.set_end(range.end);
    }
  }
  return manifest;
}

absl::Status WriteFolder(const std::string& folder, const Layout& layout, const Checkpoint& checkpoint) {
  v1::CheckpointManifest manifest = DescribeCheckpoint(layout, checkpoint);
  TensorSet model;
  model.AddVector(layout, checkpoint.parameters, "");
  for (const auto& [name, values] : checkpoint.buffers) model.AddBuffer(name, values, &checkpoint.step);
  RETURN_IF_ERROR(AddFile(folder, kModel, model.Serialize(), manifest));
  TensorSet optimizer;
  for (size_t i = 0; i < checkpoint.state.size(); ++i) {
    optimizer.AddVector(layout, checkpoint.state[i], absl::StrCat(".", checkpoint.state_names[i]));
  }
  RETURN_IF_ERROR(AddFile(folder, kOptimizer, optimizer.Serialize(), manifest));
  google::protobuf::util::JsonPrintOptions print;
  print.add_whitespace = true;
  print.always_print_primitive_fields = true;
  print.preserve_proto_field_names = true;
  std::string json;
  const auto printed = google::protobuf::util::MessageToJsonString(manifest, &json, print);
  if (!printed.ok()) return absl::InternalError(absl::StrCat("manifest: ", std::string(printed.message())));
  return WriteFileAtomically(absl::StrCat(folder, "/", kManifest), json);
}

// The whole file. Memory is asked for by the file's size, never by what a manifest claims.
absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::DataLossError(absl::StrCat(path, " is missing or cannot be opened"));
  std::error_code error;
  const uintmax_t size = fs::file_size(path, error);
  if (error) return absl::DataLossError(absl::StrCat(path, " has no size: ", error.message()));
  std::string content(size, '\0');
  file.read(content.data(), static_cast<std::streamsize>(size));
  if (!file) return absl::DataLossError(absl::StrCat(path, " cannot be read to its end"));
  return content;
}

absl::StatusOr<v1::CheckpointManifest> ReadManifest(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kManifest);
  ASSIGN_OR_RETURN(const std::string json, ReadFile(path));
  v1::CheckpointManifest manifest;
  const auto parsed = google::protobuf::util::JsonStringToMessage(json, &manifest);
  if (!parsed.ok()) {
    return absl::DataLossError(absl::StrCat(path, " does not parse: ", std::string(parsed.message())));
  }
  if (manifest.step() < 0 || manifest.epoch() < 0) {
    return absl::DataLossError(
        absl::StrCat(path, " has step ", manifest.step(), " and epoch ", manifest.epoch(), ", expected 0 or more"));
  }
  return manifest;
}

// One of the manifest's files, with the size and the CRC that it says.
absl::StatusOr<std::string> ReadVerified(const std::string& folder, const v1::CheckpointManifest& manifest,
                                         const std::string& name) {
  const auto& files = manifest.files();
  const auto file = std::find_if(files.begin(), files.end(), [&](const auto& f) { return f.name() == name; });
  if (file == files.end()) return absl::DataLossError(absl::StrCat(folder, "/", kManifest, " does not list ", name));
  const std::string path = absl::StrCat(folder, "/", name);
  ASSIGN_OR_RETURN(std::string content, ReadFile(path));
  if (static_cast<int64_t>(content.size()) != file->size_bytes()) {
    return absl::DataLossError(absl::StrCat(path, " has ", content.size(), " bytes, expected ", file->size_bytes()));
  }
  if (const uint32_t crc = Crc32(content); crc != file->crc32()) {
    return absl::DataLossError(absl::StrFormat("%s has CRC %08x, expected %08x", path, crc, file->crc32()));
  }
  return content;
}

// The tensors of a file, each to be taken once.
class TensorSource {
 public:
  explicit TensorSource(std::map<std::string, TensorView> tensors) : tensors_(std::move(tensors)) {}

  // InvalidArgument if it is not there, or is of another type or shape.
  absl::StatusOr<TensorView> Take(const std::string& name, TensorType type, const std::vector<int64_t>& shape) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) {
      return absl::InvalidArgumentError(absl::StrCat("the checkpoint has no tensor ", name,
                                                     ": resume with the --model and --optimizer that wrote it"));
    }
    const TensorView tensor = found->second;
    if (tensor.type != type || tensor.shape != shape) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", name, " has type and shape ", ToString(tensor.type, tensor.shape),
          " in the checkpoint, the model needs ", ToString(type, shape), ": resume with the --model that wrote it"));
    }
    tensors_.erase(found);
    return tensor;
  }

  absl::Status CheckAllTaken() const {
    if (tensors_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("the checkpoint has tensor ", tensors_.begin()->first,
                                                   ", which neither the model nor the optimizer ",
                                                   "has: resume with the --model and --optimizer that wrote it"));
  }

 private:
  static std::string ToString(TensorType type, const std::vector<int64_t>& shape) {
    return absl::StrCat(type == TensorType::kFloat32 ? "F32" : "I64", " [", absl::StrJoin(shape, ", "), "]");
  }

  std::map<std::string, TensorView> tensors_;
};

std::vector<float> Floats(const TensorView& tensor) {
  std::vector<float> values(tensor.bytes.size() / sizeof(float));
  std::copy(tensor.bytes.begin(), tensor.bytes.end(), std::as_writable_bytes(std::span(values)).begin());
  return values;
}

absl::StatusOr<std::vector<float>> TakeVector(TensorSource* source, const Layout& layout, absl::string_view suffix) {
  std::vector<float> vector(layout.element_count(), 0.0f);
  for (const Tensor& tensor : layout.tensors()) {
    ASSIGN_OR_RETURN(const TensorView view, source->Take(absl::StrCat(tensor.spec.name, suffix), TensorType::kFloat32,
                                                         TorchShape(tensor.spec)));
    FromTorchOrder(tensor.spec, Floats(view), std::span(vector).subspan(tensor.range.begin, tensor.range.size()));
  }
  return vector;
}

absl::Status TakeModel(const std::string& file, const Layout& layout,
                       const std::map<std::string, int64_t>& buffer_sizes, Checkpoint* checkpoint) {
  ASSIGN_OR_RETURN(auto tensors, ParseSafetensors(file));
  TensorSource source(std::move(tensors));
  ASSIGN_OR_RETURN(checkpoint->parameters, TakeVector(&source, layout, ""));
  for (const auto& [name, size] : buffer_sizes) {
    ASSIGN_OR_RETURN(const TensorView view, source.Take(name, TensorType::kFloat32, {size}));
    checkpoint->buffers[name] = Floats(view);
    absl::string_view module = name;
    if (!absl::ConsumeSuffix(&module, kRunningMean)) continue;
    RETURN_IF_ERROR(source.Take(absl::StrCat(module, kBatchesTracked), TensorType::kInt64, {}).status());
  }
  return source.CheckAllTaken();
}

absl::Status TakeOptimizer(const std::string& file, const Layout& layout, const std::vector<std::string>& state_names,
                           Checkpoint* checkpoint) {
  ASSIGN_OR_RETURN(auto tensors, ParseSafetensors(file));
  TensorSource source(std::move(tensors));
  checkpoint->state_names = state_names;
  for (const std::string& name : state_names) {
    ASSIGN_OR_RETURN(checkpoint->state.emplace_back(), TakeVector(&source, layout, absl::StrCat(".", name)));
  }
  return source.CheckAllTaken();
}

}  // namespace

absl::Status WriteCheckpoint(const std::string& dir, const Layout& layout, const Checkpoint& checkpoint) {
  CHECK_EQ(std::ssize(checkpoint.parameters), layout.element_count());
  CHECK_EQ(checkpoint.state.size(), checkpoint.state_names.size());
  for (const std::vector<float>& state : checkpoint.state) CHECK_EQ(std::ssize(state), layout.element_count());
  const auto fill = [&](const std::string& folder) { return WriteFolder(folder, layout, checkpoint); };
  RETURN_IF_ERROR(PublishFolder(dir, checkpoint.step, fill));
  RemoveOldFolders(dir, checkpoint.step, kCheckpointsKept);
  return absl::OkStatus();
}

absl::StatusOr<Checkpoint> ReadCheckpoint(const std::string& folder, const Layout& layout,
                                          const std::vector<std::string>& state_names,
                                          const std::map<std::string, int64_t>& buffer_sizes) {
  ASSIGN_OR_RETURN(const v1::CheckpointManifest manifest, ReadManifest(folder));
  // Both before anything is decoded: a damaged folder is damaged, whatever model it may be of.
  ASSIGN_OR_RETURN(const std::string model, ReadVerified(folder, manifest, kModel));
  ASSIGN_OR_RETURN(const std::string optimizer, ReadVerified(folder, manifest, kOptimizer));
  Checkpoint checkpoint;
  checkpoint.step = manifest.step();
  checkpoint.epoch = manifest.epoch();
  checkpoint.config.insert(manifest.config().begin(), manifest.config().end());
  RETURN_IF_ERROR(TakeModel(model, layout, buffer_sizes, &checkpoint), folder, "/", kModel);
  RETURN_IF_ERROR(TakeOptimizer(optimizer, layout, state_names, &checkpoint), folder, "/", kOptimizer);
  return checkpoint;
}

absl::StatusOr<std::optional<FoundCheckpoint>> ReadNewestCheckpoint(
    const std::string& dir, const Layout& layout, const std::vector<std::string>& state_names,
    const std::map<std::string, int64_t>& buffer_sizes) {
  FoundCheckpoint found;
  for (const CheckpointFolder& folder : ListCheckpointFolders(dir)) {
    absl::StatusOr<Checkpoint> checkpoint = ReadCheckpoint(folder.path, layout, state_names, buffer_sizes);
    if (absl::IsDataLoss(checkpoint.status())) {
      found.warnings.push_back(
          absl::StrCat(folder.path, " is damaged and passed over: ", std::string(checkpoint.status().message())));
      continue;
    }
    RETURN_IF_ERROR(checkpoint.status());
    found.folder = folder.path;
    found.checkpoint = *std::move(checkpoint);
    return found;
  }
  if (!found.warnings.empty()) {
    return absl::DataLossError(
        absl::StrCat("no checkpoint of ", dir, " is complete: ", absl::StrJoin(found.warnings, "; ")));
  }
  return std::nullopt;
}

bool HasCheckpoint(const std::string& dir) { return !ListCheckpointFolders(dir).empty(); }

}  // namespace starring
