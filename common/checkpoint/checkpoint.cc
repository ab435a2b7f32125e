#include "common/checkpoint/checkpoint.h"

#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/atomic_file.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/checkpoint/safetensors.h"
#include "common/security/sha256.h"
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

// This calls crc32_z and not crc32, which takes the length as an unsigned int, and so the length of a tensor modulo 4
// GiB. The CRC of no bytes is 0, the initial value of the manifest's field.
uint32_t ExtendCrc32(uint32_t crc, std::span<const std::byte> bytes) {
  return static_cast<uint32_t>(crc32_z(crc, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

// A file of tensors in PyTorch's order. Tensors are reordered one at a time while the file is written, so writing needs
// memory for one tensor besides the vectors. The tensors are referred to, not copied: the caller's arrays live until
// Write returns.
class TensorFile {
 public:
  void AddVector(const Layout& layout, std::span<const float> vector, absl::string_view suffix) {
    for (const Tensor& tensor : layout.tensors()) {
      const std::span<const float> values = vector.subspan(tensor.range.begin, tensor.range.size());
      Add(absl::StrCat(tensor.spec.name, suffix), {.type = TensorType::kFloat32, .shape = TorchShape(tensor.spec)},
          {.spec = &tensor.spec, .bytes = std::as_bytes(values)});
    }
  }

  void AddBuffer(const std::string& name, std::span<const float> values, const int64_t* step) {
    Add(name, {.type = TensorType::kFloat32, .shape = {static_cast<int64_t>(values.size())}},
        {.bytes = std::as_bytes(values)});
    absl::string_view module = name;
    if (!absl::ConsumeSuffix(&module, kRunningMean)) return;
    // Without this tensor PyTorch's load_state_dict reports a missing key.
    Add(absl::StrCat(module, kBatchesTracked), {.type = TensorType::kInt64, .shape = {}},
        {.bytes = std::as_bytes(std::span(step, 1))});
  }

  // Writes folder/name and adds it to `manifest`.
  absl::Status Write(const std::string& folder, const char* name, v1::CheckpointManifest& manifest) const {
    ASSIGN_OR_RETURN(const std::unique_ptr<AtomicFile> file, AtomicFile::Create(absl::StrCat(folder, "/", name)));
    v1::CheckpointFile& entry = *manifest.add_files();
    entry.set_name(name);
    const auto append = [&](std::span<const std::byte> bytes) {
      entry.set_size_bytes(entry.size_bytes() + std::ssize(bytes));
      entry.set_crc32(ExtendCrc32(entry.crc32(), bytes));
      return file->Append(bytes);
    };
    // The header follows from the shapes alone, so the file is written from front to back, and its size and CRC are
    // those of the bytes as they pass.
    const std::string header = SafetensorsHeader(shapes_);
    RETURN_IF_ERROR(append(std::as_bytes(std::span(header))));
    std::vector<float> reordered;
    // Both maps have the same keys in the same order. The header gives out offsets in that order, so the bytes must
    // follow in it.
    for (const auto& [tensor, content] : contents_) {
      std::span<const std::byte> bytes = content.bytes;
      if (content.spec != nullptr) {
        // `reordered` grows to the largest tensor of the file and is then reused.
        reordered.resize(bytes.size() / sizeof(float));
        ToTorchOrder(*content.spec, FloatsOf(bytes), reordered);
        bytes = std::as_bytes(std::span(reordered));
      }
      RETURN_IF_ERROR(append(bytes));
    }
    // Commit flushes the file to the disk, as PublishFolder demands. If a call above failed, the destructor removes the
    // temporary file.
    return file->Commit();
  }

 private:
  struct Content {
    const TensorSpec* spec = nullptr;  // of float32 values in our memory order; null: the bytes are written as they are
    std::span<const std::byte> bytes;
  };

  static std::span<const float> FloatsOf(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
  }

  void Add(const std::string& name, TensorShape shape, Content content) {
    shapes_[name] = std::move(shape);
    contents_[name] = content;
  }

  std::map<std::string, TensorShape> shapes_;
  std::map<std::string, Content> contents_;
};

void Describe(const TrainedModel& model, v1::TrainedModel* out) {
  out->set_layer_file(AsUtf8(model.layer_file));
  out->set_height(static_cast<int32_t>(model.height));
  out->set_width(static_cast<int32_t>(model.width));
  out->set_channels(static_cast<int32_t>(model.channels));
  out->set_takes_numbers(model.takes_numbers);
  out->set_outputs(static_cast<int32_t>(model.outputs));
  out->mutable_mean()->Add(model.mean.begin(), model.mean.end());
  out->mutable_deviation()->Add(model.deviation.begin(), model.deviation.end());
  size_t names_bytes = 0;
  for (const std::string& name : model.class_names) names_bytes += name.size();
  if (names_bytes > kManifestNamesBytesMax) return;  // a reader refuses a manifest of another order
  for (const std::string& name : model.class_names) out->add_class_names(AsUtf8(name));
}

v1::CheckpointManifest DescribeCheckpoint(const Layout& layout, const Checkpoint& checkpoint) {
  v1::CheckpointManifest manifest;
  manifest.set_step(checkpoint.step);
  manifest.set_epoch(checkpoint.epoch);
  for (const auto& [flag, value] : checkpoint.config) (*manifest.mutable_config())[flag] = value;
  manifest.set_world_size(checkpoint.world_size);
  manifest.set_chunk_bytes(static_cast<int32_t>(checkpoint.chunk_bytes));
  manifest.set_bucket_bytes(static_cast<int32_t>(checkpoint.bucket_bytes));
  manifest.set_version(kCheckpointVersion);
  manifest.set_finished(checkpoint.finished);
  Describe(checkpoint.model, manifest.mutable_model());
  if (checkpoint.best.epoch > 0) {
    manifest.mutable_best()->set_epoch(checkpoint.best.epoch);
    manifest.mutable_best()->set_test_loss(checkpoint.best.test_loss);
  }
  manifest.set_layout_hash(layout.hash());
  manifest.set_parameter_sha256(Sha256Hex(std::as_bytes(std::span(checkpoint.parameters))));
  size_t range_count = 0;
  for (const auto& ranges : checkpoint.owner_ranges) range_count += ranges.size();
  if (range_count > kManifestOwnerRangesMax) return manifest;  // too many for a person to read
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
  TensorFile model;
  model.AddVector(layout, checkpoint.parameters, "");
  for (const auto& [name, values] : checkpoint.buffers) model.AddBuffer(name, values, &checkpoint.step);
  RETURN_IF_ERROR(model.Write(folder, kModel, manifest));
  TensorFile optimizer;
  for (size_t i = 0; i < checkpoint.state.size(); ++i) {
    optimizer.AddVector(layout, checkpoint.state[i], absl::StrCat(".", checkpoint.state_names[i]));
  }
  RETURN_IF_ERROR(optimizer.Write(folder, kOptimizer, manifest));
  google::protobuf::util::JsonPrintOptions print;
  // A person may read the manifest: it has line ends, zeros too, and the names of the .proto.
  print.add_whitespace = true;
  print.always_print_primitive_fields = true;
  print.preserve_proto_field_names = true;
  std::string json;
  const auto printed = google::protobuf::util::MessageToJsonString(manifest, &json, print);
  if (!printed.ok()) return absl::InternalError(absl::StrCat("manifest: ", std::string(printed.message())));
  // The manifest comes last, because it has size and CRC of the two files above.
  return WriteFileAtomically(absl::StrCat(folder, "/", kManifest), json);
}

// A file that is read in parts: a damaged file that claims a huge size must not make the reader allocate that much.
class InputFile {
 public:
  static absl::StatusOr<InputFile> Open(const std::string& path) {
    InputFile input(path);
    if (!input.file_) return absl::DataLossError(absl::StrCat(path, " is missing or cannot be opened"));
    std::error_code error;
    // A folder of that name opens without an error. This call refuses it.
    const uintmax_t size = fs::file_size(path, error);
    if (error) return absl::DataLossError(absl::StrCat(path, " has no size: ", error.message()));
    input.size_bytes_ = static_cast<int64_t>(size);
    return input;
  }

  int64_t size_bytes() const { return size_bytes_; }

  // Fills `out` with the bytes from `begin` on.
  absl::Status Read(int64_t begin, std::span<std::byte> out) {
    file_.clear();  // a read that failed before must not fail this one
    file_.seekg(begin);
    file_.read(reinterpret_cast<char*>(out.data()), std::ssize(out));
    if (file_) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(path_, " cannot be read to its end"));
  }

  absl::StatusOr<std::string> ReadText(int64_t begin, int64_t bytes) {
    std::string text(bytes, '\0');
    RETURN_IF_ERROR(Read(begin, std::as_writable_bytes(std::span(text))));
    return text;
  }

 private:
  explicit InputFile(const std::string& path) : path_(path), file_(path, std::ios::binary) {}

  std::string path_;
  std::ifstream file_;
  int64_t size_bytes_ = 0;
};

absl::StatusOr<v1::CheckpointManifest> ReadManifest(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kManifest);
  ASSIGN_OR_RETURN(InputFile file, InputFile::Open(path));
  // The size is checked before the text is allocated: a sparse file of 1 TiB would end the process.
  if (file.size_bytes() > kManifestBytesMax) {
    return absl::DataLossError(
        absl::StrCat(path, " has ", file.size_bytes(), " bytes, a manifest has at most ", kManifestBytesMax));
  }
  ASSIGN_OR_RETURN(const std::string json, file.ReadText(0, file.size_bytes()));
  v1::CheckpointManifest manifest;
  google::protobuf::util::JsonParseOptions parse;
  // A later version may have more fields. It is refused by its number, and not called damaged.
  parse.ignore_unknown_fields = true;
  const auto parsed = google::protobuf::util::JsonStringToMessage(json, &manifest, parse);
  if (!parsed.ok()) {
    return absl::DataLossError(absl::StrCat(path, " does not parse: ", std::string(parsed.message())));
  }
  // The parser takes any number, also from a file that a person has edited.
  if (manifest.step() < 0 || manifest.epoch() < 0) {
    return absl::DataLossError(
        absl::StrCat(path, " has step ", manifest.step(), " and epoch ", manifest.epoch(), ", expected 0 or more"));
  }
  if (manifest.world_size() < 0 || manifest.chunk_bytes() < 0 || manifest.bucket_bytes() < 0) {
    return absl::DataLossError(absl::StrCat(path, " has world_size ", manifest.world_size(), ", chunk_bytes ",
                                            manifest.chunk_bytes(), " and bucket_bytes ", manifest.bucket_bytes(),
                                            ", expected 0 or more"));
  }
  if (manifest.best().epoch() < 0 || manifest.best().epoch() > manifest.epoch() ||
      !std::isfinite(manifest.best().test_loss())) {
    return absl::DataLossError(absl::StrCat(path, " has the best epoch ", manifest.best().epoch(), " of ",
                                            manifest.epoch(), ", with the test loss ", manifest.best().test_loss()));
  }
  if (manifest.version() < 0 || manifest.version() > kCheckpointVersion) {
    return absl::InvalidArgumentError(absl::StrCat(path, " has version ", manifest.version(),
                                                   ", this build reads 0 to ", kCheckpointVersion,
                                                   ": resume with the build that wrote it"));
  }
  return manifest;
}

// Opens one of the manifest's files, after reading it once to check its size and CRC. The parser, which comes next,
// then sees only bytes that a checkpoint once wrote.
absl::StatusOr<InputFile> OpenVerified(const std::string& folder, const v1::CheckpointManifest& manifest,
                                       const std::string& name) {
  const auto& files = manifest.files();
  const auto entry = std::find_if(files.begin(), files.end(), [&](const auto& f) { return f.name() == name; });
  if (entry == files.end()) return absl::DataLossError(absl::StrCat(folder, "/", kManifest, " does not list ", name));
  const std::string path = absl::StrCat(folder, "/", name);
  ASSIGN_OR_RETURN(InputFile file, InputFile::Open(path));
  // The size is compared first: a truncated file is named as such without reading it, and the loop below needs no
  // second bound.
  if (file.size_bytes() != entry->size_bytes()) {
    return absl::DataLossError(
        absl::StrCat(path, " has ", file.size_bytes(), " bytes, expected ", entry->size_bytes()));
  }
  // The file may be larger than the memory that is free, so it is read in pieces.
  constexpr int64_t kPieceBytes = 1 << 20;
  std::vector<std::byte> piece(std::min(kPieceBytes, file.size_bytes()));
  uint32_t crc = 0;
  for (int64_t begin = 0; begin < file.size_bytes(); begin += kPieceBytes) {
    const std::span<std::byte> part = std::span(piece).first(std::min(kPieceBytes, file.size_bytes() - begin));
    RETURN_IF_ERROR(file.Read(begin, part));
    crc = ExtendCrc32(crc, part);
  }
  if (crc != entry->crc32()) {
    return absl::DataLossError(absl::StrFormat("%s has CRC %08x, expected %08x", path, crc, entry->crc32()));
  }
  return file;
}

// The tensors of a file. Each is taken once, so that a tensor that is left over is found.
class TensorSource {
 public:
  // `tensors_expected` bounds the header: a far longer one belongs to another model, and must not be read into memory.
  static absl::StatusOr<TensorSource> Open(InputFile* file, int64_t tensors_expected) {
    if (file->size_bytes() < kSafetensorsLengthBytes) {
      return absl::DataLossError(absl::StrCat("expected at least 8 bytes, found ", file->size_bytes()));
    }
    ASSIGN_OR_RETURN(const std::string length, file->ReadText(0, kSafetensorsLengthBytes));
    const int64_t header_bytes_max =
        std::min(kSafetensorsHeaderBytesMax, kTensorHeaderBytesMin + tensors_expected * kTensorHeaderBytesMax);
    ASSIGN_OR_RETURN(const int64_t header_bytes, SafetensorsHeaderBytes(length, file->size_bytes(), header_bytes_max));
    ASSIGN_OR_RETURN(const std::string header, file->ReadText(kSafetensorsLengthBytes, header_bytes));
    ASSIGN_OR_RETURN(auto tensors, ParseSafetensorsHeader(header, file->size_bytes()));
    return TensorSource(file, std::move(tensors));
  }

  // InvalidArgument if the file has no such tensor, or has it with another type or shape.
  absl::StatusOr<TensorPlace> Take(const std::string& name, TensorType type, const std::vector<int64_t>& shape) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) {
      return absl::InvalidArgumentError(absl::StrCat("the checkpoint has no tensor ", name,
                                                     ": resume with the --model and --optimizer that wrote it"));
    }
    TensorPlace tensor = found->second;
    if (tensor.type != type || tensor.shape != shape) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", name, " has type and shape ", ToString(tensor.type, tensor.shape),
          " in the checkpoint, the model needs ", ToString(type, shape), ": resume with the --model that wrote it"));
    }
    tensors_.erase(found);
    return tensor;
  }

  // Reads as many values as the shape given to Take says.
  absl::StatusOr<std::vector<float>> ReadFloats(const TensorPlace& tensor) {
    std::vector<float> values((tensor.end - tensor.begin) / static_cast<int64_t>(sizeof(float)));
    RETURN_IF_ERROR(file_->Read(tensor.begin, std::as_writable_bytes(std::span(values))));
    return values;
  }

  absl::Status CheckAllTaken() const {
    if (tensors_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("the checkpoint has tensor ", tensors_.begin()->first,
                                                   ", which neither the model nor the optimizer ",
                                                   "has: resume with the --model and --optimizer that wrote it"));
  }

 private:
  TensorSource(InputFile* file, std::map<std::string, TensorPlace> tensors)
      : file_(file), tensors_(std::move(tensors)) {}

  static std::string ToString(TensorType type, const std::vector<int64_t>& shape) {
    return absl::StrCat(type == TensorType::kFloat32 ? "F32" : "I64", " [", absl::StrJoin(shape, ", "), "]");
  }

  InputFile* file_;
  std::map<std::string, TensorPlace> tensors_;
};

absl::Status TakeVector(TensorSource* source, const Layout& layout, absl::string_view suffix, OptimizerState wanted,
                        std::vector<float>* vector) {
  const bool reads = wanted == OptimizerState::kRead;
  // The gaps between tensors are not in the file. A layout promises that they are 0, and digests include them.
  if (reads) vector->assign(layout.element_count(), 0.0f);
  for (const Tensor& tensor : layout.tensors()) {
    ASSIGN_OR_RETURN(const TensorPlace place, source->Take(absl::StrCat(tensor.spec.name, suffix), TensorType::kFloat32,
                                                           TorchShape(tensor.spec)));
    if (!reads) continue;
    ASSIGN_OR_RETURN(const std::vector<float> values, source->ReadFloats(place));
    FromTorchOrder(tensor.spec, values, std::span(*vector).subspan(tensor.range.begin, tensor.range.size()));
  }
  return absl::OkStatus();
}

absl::Status TakeModel(InputFile* file, const Layout& layout, const std::map<std::string, int64_t>& buffer_sizes,
                       Checkpoint* checkpoint) {
  ASSIGN_OR_RETURN(TensorSource source,
                   TensorSource::Open(file, std::ssize(layout.tensors()) + 2 * std::ssize(buffer_sizes)));
  RETURN_IF_ERROR(TakeVector(&source, layout, "", OptimizerState::kRead, &checkpoint->parameters));
  for (const auto& [name, size] : buffer_sizes) {
    ASSIGN_OR_RETURN(const TensorPlace place, source.Take(name, TensorType::kFloat32, {size}));
    ASSIGN_OR_RETURN(checkpoint->buffers[name], source.ReadFloats(place));
    absl::string_view module = name;
    if (!absl::ConsumeSuffix(&module, kRunningMean)) continue;
    // Only PyTorch needs the value. The tensor is taken, because CheckAllTaken would otherwise report it as foreign.
    RETURN_IF_ERROR(source.Take(absl::StrCat(module, kBatchesTracked), TensorType::kInt64, {}).status());
  }
  return source.CheckAllTaken();
}

absl::Status TakeOptimizer(InputFile* file, const Layout& layout, const std::vector<std::string>& state_names,
                           OptimizerState wanted, Checkpoint* checkpoint) {
  ASSIGN_OR_RETURN(TensorSource source,
                   TensorSource::Open(file, std::ssize(layout.tensors()) * std::ssize(state_names)));
  if (wanted == OptimizerState::kRead) checkpoint->state_names = state_names;
  for (const std::string& name : state_names) {
    std::vector<float> state;
    RETURN_IF_ERROR(TakeVector(&source, layout, absl::StrCat(".", name), wanted, &state));
    if (wanted == OptimizerState::kRead) checkpoint->state.push_back(std::move(state));
  }
  return source.CheckAllTaken();
}

// All but the model and the tensors.
Checkpoint HeadOf(const v1::CheckpointManifest& manifest) {
  Checkpoint head;
  head.step = manifest.step();
  head.epoch = manifest.epoch();
  head.world_size = manifest.world_size();
  head.chunk_bytes = manifest.chunk_bytes();
  head.bucket_bytes = manifest.bucket_bytes();
  head.config.insert(manifest.config().begin(), manifest.config().end());
  head.version = manifest.version();
  head.finished = manifest.finished();
  head.best = {.epoch = manifest.best().epoch(), .test_loss = manifest.best().test_loss()};
  return head;
}

}  // namespace

absl::Status WriteCheckpoint(const std::string& dir, const Layout& layout, const Checkpoint& checkpoint) {
  CHECK_EQ(std::ssize(checkpoint.parameters), layout.element_count());
  CHECK_EQ(checkpoint.state.size(), checkpoint.state_names.size());
  for (const std::vector<float>& state : checkpoint.state) CHECK_EQ(std::ssize(state), layout.element_count());
  const auto fill = [&](const std::string& folder) { return WriteFolder(folder, layout, checkpoint); };
  RETURN_IF_ERROR(PublishFolder(dir, checkpoint.step, fill));
  // Old folders go only when the new one is on the disk, so at every moment a complete checkpoint exists.
  if (checkpoint.is_only) {
    RemoveOtherFolders(dir, checkpoint.step);
  } else {
    RemoveOldFolders(dir, checkpoint.step, kCheckpointsKept);
  }
  return absl::OkStatus();
}

absl::StatusOr<Checkpoint> ReadCheckpoint(const std::string& folder, const Layout& layout,
                                          const std::vector<std::string>& state_names,
                                          const std::map<std::string, int64_t>& buffer_sizes, OptimizerState wanted,
                                          const CheckpointFits& fits) {
  ASSIGN_OR_RETURN(const v1::CheckpointManifest manifest, ReadManifest(folder));
  // Both are verified before either is decoded: a damaged folder must be reported as damaged, and passed over, even if
  // it also belongs to another model.
  ASSIGN_OR_RETURN(InputFile model, OpenVerified(folder, manifest, kModel));
  std::optional<InputFile> optimizer;
  if (wanted != OptimizerState::kIgnore) {
    ASSIGN_OR_RETURN(optimizer, OpenVerified(folder, manifest, kOptimizer));
  }
  Checkpoint checkpoint = HeadOf(manifest);
  // This check comes before the tensors, whose errors only say which shapes differ.
  if (fits != nullptr) RETURN_IF_ERROR(fits(checkpoint, folder));
  RETURN_IF_ERROR(TakeModel(&model, layout, buffer_sizes, &checkpoint), folder, "/", kModel);
  if (!optimizer.has_value()) return checkpoint;
  RETURN_IF_ERROR(TakeOptimizer(&*optimizer, layout, state_names, wanted, &checkpoint), folder, "/", kOptimizer);
  return checkpoint;
}

absl::StatusOr<std::optional<FoundCheckpoint>> ReadNewestCheckpoint(const std::string& dir, const Layout& layout,
                                                                    const std::vector<std::string>& state_names,
                                                                    const std::map<std::string, int64_t>& buffer_sizes,
                                                                    OptimizerState wanted, const CheckpointFits& fits) {
  FoundCheckpoint found;
  for (const CheckpointFolder& folder : ListCheckpointFolders(dir)) {
    absl::StatusOr<Checkpoint> checkpoint =
        ReadCheckpoint(folder.path, layout, state_names, buffer_sizes, wanted, fits);
    // Only damage passes a folder over. A whole checkpoint of another model or optimizer ends the search with an error:
    // an older folder that fits would hide that the flags are wrong.
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

std::optional<int64_t> StepOfCheckpoint(const std::string& folder) {
  std::error_code error;
  // Other programs have a manifest.json too.
  if (!fs::exists(absl::StrCat(folder, "/", kModel), error)) return std::nullopt;
  const absl::StatusOr<v1::CheckpointManifest> manifest = ReadManifest(folder);
  return manifest.ok() ? std::optional<int64_t>(manifest->step()) : std::nullopt;
}

absl::StatusOr<Checkpoint> ReadCheckpointHead(const std::string& folder) {
  ASSIGN_OR_RETURN(const v1::CheckpointManifest manifest, ReadManifest(folder));
  if (!manifest.has_model()) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder,
                     " was written by a version that kept no model: resume from it, for one step or more, with "
                     "this one"));
  }
  const v1::TrainedModel& model = manifest.model();
  Checkpoint head = HeadOf(manifest);
  TrainedModel& read = head.model;
  read = {.layer_file = model.layer_file(),
          .height = model.height(),
          .width = model.width(),
          .channels = model.channels(),
          .takes_numbers = model.takes_numbers(),
          .outputs = model.outputs(),
          .mean = {model.mean().begin(), model.mean().end()},
          .deviation = {model.deviation().begin(), model.deviation().end()},
          .class_names = {model.class_names().begin(), model.class_names().end()}};
  // Inputs are divided by the deviation, and a quotient with a subnormal one may be infinite.
  const auto is_usable = [](float mean, float deviation) {
    return std::isfinite(mean) && std::isnormal(deviation) && deviation > 0;
  };
  if (std::min({read.height, read.width, read.channels, read.outputs}) < 1 || std::ssize(read.mean) != read.channels ||
      std::ssize(read.deviation) != read.channels || !std::ranges::equal(read.mean, read.deviation, is_usable)) {
    return absl::DataLossError(absl::StrCat(folder, "/", kManifest, " has a model of ", read.height, " x ", read.width,
                                            " x ", read.channels, " values, ", read.outputs, " outputs, ",
                                            read.mean.size(), " means and ", read.deviation.size(),
                                            " deviations, expected 1 or more, and a finite one for each channel"));
  }
  return head;
}

bool HasCheckpoint(const std::string& dir) { return !ListCheckpointFolders(dir).empty(); }

}  // namespace starring
