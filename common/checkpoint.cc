#include "common/checkpoint.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/atomic_file.h"
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
constexpr char kPrefix[] = "step-";
constexpr char kRunningMean[] = ".running_mean";
constexpr char kBatchesTracked[] = ".num_batches_tracked";

uint32_t Crc32(const std::string& content) {
  return static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(content.data()), content.size()));
}

absl::Status FlushFolder(const std::string& path) {
  const int folder = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  const int result = fsync(folder);
  const int error = errno;
  close(folder);
  return result == 0 ? absl::OkStatus() : absl::ErrnoToStatus(error, absl::StrCat("cannot flush ", path));
}

absl::Status FileSystemError(const std::error_code& error, absl::string_view what, const std::string& path) {
  return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot ", what, " ", path));
}

const std::vector<int64_t> TorchShape(const TensorSpec& spec) {
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
  RETURN_IF_ERROR(WriteFileAtomically(absl::StrCat(folder, "/", kManifest), json));
  return FlushFolder(folder);
}

// Names of DIR's checkpoint folders, newest first.
std::vector<std::string> ListFolders(const std::string& dir) {
  std::vector<std::string> names;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir, error)) {
    const std::string name = entry.path().filename().string();
    if (absl::StartsWith(name, kPrefix) && entry.is_directory(error)) names.push_back(name);
  }
  std::sort(names.rbegin(), names.rend());
  return names;
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::DataLossError(absl::StrCat(path, " is missing"));
  std::string content{std::istreambuf_iterator<char>(file), {}};
  if (file.bad()) return absl::DataLossError(absl::StrCat(path, " cannot be read"));
  return content;
}

struct CheckpointFiles {
  v1::CheckpointManifest manifest;
  std::map<std::string, std::string> content;  // by name
};

// DataLoss if anything is missing or differs from the manifest.
absl::StatusOr<CheckpointFiles> ReadVerified(const std::string& folder) {
  CheckpointFiles files;
  ASSIGN_OR_RETURN(const std::string json, ReadFile(absl::StrCat(folder, "/", kManifest)));
  const auto parsed = google::protobuf::util::JsonStringToMessage(json, &files.manifest);
  if (!parsed.ok()) {
    return absl::DataLossError(
        absl::StrCat(folder, "/", kManifest, " does not parse: ", std::string(parsed.message())));
  }
  for (const v1::CheckpointFile& file : files.manifest.files()) {
    const std::string path = absl::StrCat(folder, "/", file.name());
    ASSIGN_OR_RETURN(std::string content, ReadFile(path));
    if (static_cast<int64_t>(content.size()) != file.size_bytes()) {
      return absl::DataLossError(absl::StrCat(path, " has ", content.size(), " bytes, expected ", file.size_bytes()));
    }
    if (const uint32_t crc = Crc32(content); crc != file.crc32()) {
      return absl::DataLossError(absl::StrFormat("%s has CRC %08x, expected %08x", path, crc, file.crc32()));
    }
    files.content[file.name()] = std::move(content);
  }
  for (const char* name : {kModel, kOptimizer}) {
    if (!files.content.contains(name)) return absl::DataLossError(absl::StrCat(folder, " does not list ", name));
  }
  return files;
}

absl::StatusOr<TensorView> FindTensor(const std::map<std::string, TensorView>& tensors, const std::string& name,
                                      const std::vector<int64_t>& shape) {
  const auto found = tensors.find(name);
  if (found == tensors.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the checkpoint has no tensor ", name, ": resume with the --model and --optimizer that wrote it"));
  }
  if (found->second.type != TensorType::kFloat32 || found->second.shape != shape) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", name, " has shape [",
                                                   absl::StrJoin(found->second.shape, ", "),
                                                   "] in the checkpoint, the model needs [", absl::StrJoin(shape, ", "),
                                                   "]: resume with the --model that wrote it"));
  }
  return found->second;
}

std::vector<float> Floats(const TensorView& tensor) {
  std::vector<float> values(tensor.bytes.size() / sizeof(float));
  std::copy(tensor.bytes.begin(), tensor.bytes.end(), std::as_writable_bytes(std::span(values)).begin());
  return values;
}

absl::StatusOr<std::vector<float>> ReadVector(const std::map<std::string, TensorView>& tensors, const Layout& layout,
                                              absl::string_view suffix) {
  std::vector<float> vector(layout.element_count(), 0.0f);
  for (const Tensor& tensor : layout.tensors()) {
    ASSIGN_OR_RETURN(const TensorView view,
                     FindTensor(tensors, absl::StrCat(tensor.spec.name, suffix), TorchShape(tensor.spec)));
    FromTorchOrder(tensor.spec, Floats(view), std::span(vector).subspan(tensor.range.begin, tensor.range.size()));
  }
  return vector;
}

absl::StatusOr<Checkpoint> Decode(const CheckpointFiles& files, const Layout& layout,
                                  const std::vector<std::string>& state_names,
                                  const std::map<std::string, int64_t>& buffer_sizes) {
  Checkpoint checkpoint;
  checkpoint.step = files.manifest.step();
  checkpoint.epoch = files.manifest.epoch();
  checkpoint.config.insert(files.manifest.config().begin(), files.manifest.config().end());
  ASSIGN_OR_RETURN(const auto model, ParseSafetensors(files.content.at(kModel)), kModel);
  ASSIGN_OR_RETURN(checkpoint.parameters, ReadVector(model, layout, ""));
  for (const auto& [name, size] : buffer_sizes) {
    ASSIGN_OR_RETURN(const TensorView view, FindTensor(model, name, {size}));
    checkpoint.buffers[name] = Floats(view);
  }
  ASSIGN_OR_RETURN(const auto optimizer, ParseSafetensors(files.content.at(kOptimizer)), kOptimizer);
  checkpoint.state_names = state_names;
  for (const std::string& name : state_names) {
    ASSIGN_OR_RETURN(checkpoint.state.emplace_back(), ReadVector(optimizer, layout, absl::StrCat(".", name)));
  }
  return checkpoint;
}

}  // namespace

absl::Status WriteCheckpoint(const std::string& dir, const Layout& layout, const Checkpoint& checkpoint) {
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) return FileSystemError(error, "create", dir);
  const std::string name = absl::StrFormat("%s%09d", kPrefix, checkpoint.step);
  const std::string target = absl::StrCat(dir, "/", name);
  const std::string temporary = absl::StrCat(dir, "/.writing-", name, "-", getpid());
  const std::string replaced = absl::StrCat(dir, "/.replaced-", name, "-", getpid());
  const absl::Cleanup remove_leftovers = [&] {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    fs::remove_all(replaced, ignored);
  };
  fs::create_directory(temporary, error);
  if (error) return FileSystemError(error, "create", temporary);
  RETURN_IF_ERROR(WriteFolder(temporary, layout, checkpoint));
  if (fs::exists(target, error)) {
    fs::rename(target, replaced, error);
    if (error) return FileSystemError(error, "replace", target);
  }
  fs::rename(temporary, target, error);
  if (error) return FileSystemError(error, "rename to", target);
  RETURN_IF_ERROR(FlushFolder(dir));
  const std::vector<std::string> names = ListFolders(dir);
  for (size_t i = kCheckpointsKept; i < names.size(); ++i) fs::remove_all(absl::StrCat(dir, "/", names[i]), error);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<FoundCheckpoint>> ReadNewestCheckpoint(
    const std::string& dir, const Layout& layout, const std::vector<std::string>& state_names,
    const std::map<std::string, int64_t>& buffer_sizes) {
  FoundCheckpoint found;
  for (const std::string& name : ListFolders(dir)) {
    found.folder = absl::StrCat(dir, "/", name);
    const absl::StatusOr<CheckpointFiles> files = ReadVerified(found.folder);
    if (!files.ok()) {
      found.warnings.push_back(
          absl::StrCat(found.folder, " is damaged and passed over: ", std::string(files.status().message())));
      continue;
    }
    ASSIGN_OR_RETURN(found.checkpoint, Decode(*files, layout, state_names, buffer_sizes), found.folder);
    return found;
  }
  if (!found.warnings.empty()) {
    return absl::DataLossError(
        absl::StrCat("no checkpoint of ", dir, " is complete: ", absl::StrJoin(found.warnings, "; ")));
  }
  return std::nullopt;
}

bool HasCheckpoint(const std::string& dir) { return !ListFolders(dir).empty(); }

}  // namespace starring
