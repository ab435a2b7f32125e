#include "worker/checkpoint/warm_start.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/checkpoint/safetensors.h"
#include "common/job/layout.h"
#include "common/security/sha256.h"
#include "worker/data/files/data_memory.h"
#include "worker/data/files/file_stream.h"

namespace starring {
namespace {

constexpr size_t kListedMax = 10;
// 64 bits suffice to tell files apart that are given by mistake. They are no proof against a forger.
constexpr size_t kDigestDigits = 16;
constexpr size_t kPieceBytes = 16 << 20;
// PyTorch's batch norm counts its batches; ours has no use for the number.
constexpr absl::string_view kIgnored = ".num_batches_tracked";

std::string ShapeText(std::span<const int64_t> shape) { return absl::StrCat("(", absl::StrJoin(shape, ", "), ")"); }

// Lists misfits for one error.
class Problems {
 public:
  void Add(std::string line) {
    if (++count_ <= kListedMax) lines_.push_back(std::move(line));
  }
  absl::Status ToStatus(const std::string& path) const {
    if (count_ == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        path, " does not fit the model: ", absl::StrJoin(lines_, "; "),
        count_ > kListedMax ? absl::StrCat("; and ", count_ - kListedMax, " more") : "",
        ": give weights of the same layer file (python3 -m starring.weights turns PyTorch's files into safetensors)"));
  }

 private:
  size_t count_ = 0;
  std::vector<std::string> lines_;
};

bool HasShape(const TensorView& found, std::span<const int64_t> shape) {
  return found.type == TensorType::kFloat32 && std::ranges::equal(found.shape, shape);
}

std::vector<float> ValuesOf(const TensorView& tensor) {
  std::vector<float> values(tensor.bytes.size() / sizeof(float));
  // A tensor may begin at any byte of the file, where a pointer to float could be misaligned.
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

// Takes tensors out of a file by name, and notes what does not fit.
class Taker {
 public:
  explicit Taker(const std::map<std::string, TensorView>& tensors) : tensors_(tensors) {}

  // Null if there is no such tensor, or one of another shape, which `may_differ` forgives.
  const TensorView* Take(const std::string& name, std::span<const int64_t> shape, bool may_differ) {
    taken_.insert(name);
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) {
      problems_.Add(absl::StrCat(name, " is missing"));
      return nullptr;
    }
    if (HasShape(found->second, shape)) return &found->second;
    if (may_differ && found->second.type == TensorType::kFloat32) {
      other_.push_back(
          absl::StrCat(name, " has the shape ", ShapeText(shape), ", the file's ", ShapeText(found->second.shape)));
      return nullptr;
    }
    problems_.Add(absl::StrCat(name, found->second.type == TensorType::kFloat32 ? "" : " is int64 and",
                               " has the shape ", ShapeText(found->second.shape), ", expected ", ShapeText(shape)));
    return nullptr;
  }

  absl::Status Finish(const std::string& path) {
    for (const auto& [name, unused] : tensors_) {
      if (!taken_.contains(name) && !absl::EndsWith(name, kIgnored)) {
        problems_.Add(absl::StrCat(name, " is no tensor of the model"));
      }
    }
    return problems_.ToStatus(path);
  }

  const std::vector<std::string>& other() const { return other_; }

 private:
  const std::map<std::string, TensorView>& tensors_;
  std::set<std::string> taken_;
  std::vector<std::string> other_;
  Problems problems_;
};

}  // namespace

absl::StatusOr<WarmStart> WarmStart::Load(const std::string& path) {
  ASSIGN_OR_RETURN(const std::unique_ptr<FileStream> stream, FileStream::Open(path));
  WarmStart warm;
  warm.path_ = path;
  // In pieces, because a gzipped file does not tell its length.
  for (bool is_over = false; !is_over;) {
    const size_t read = warm.content_.size();
    if (std::ssize(warm.content_) > kWarmStartBytesMax) {
      return absl::DataLossError(
          absl::StrCat(path, " has more than the ", kWarmStartBytesMax, " bytes that weights to begin with may have"));
    }
    // The pieces double, so that the string's growth takes time linear in the file's size.
    const size_t piece = std::max(kPieceBytes, read);
    RETURN_IF_ERROR(CheckDataFits(path, static_cast<int64_t>(piece)));
    warm.content_.resize(read + piece);
    ASSIGN_OR_RETURN(const int64_t more,
                     stream->Read({reinterpret_cast<uint8_t*>(warm.content_.data()) + read, piece}));
    is_over = more < static_cast<int64_t>(piece);
    warm.content_.resize(read + static_cast<size_t>(more));
  }
  // torch.save writes a zip archive of pickles, which are programs.
  if (absl::StartsWith(warm.content_, "PK\x03\x04")) {
    return absl::DataLossError(absl::StrCat(path,
                                            " is a file of torch.save, expected safetensors: turn it into one by "
                                            "python3 -m starring.weights ",
                                            path, " OUT.safetensors"));
  }
  // The parse is a check: its views point into `content_`, and Apply makes them again.
  RETURN_IF_ERROR(ParseSafetensors(warm.content_).status(), path);
  warm.sha256_ = Sha256Hex(std::as_bytes(std::span(warm.content_))).substr(0, kDigestDigits);
  return warm;
}

absl::StatusOr<std::vector<std::string>> WarmStart::Apply(Network* network, std::span<float> parameters) const {
  ASSIGN_OR_RETURN(const auto tensors, ParseSafetensors(content_), path_);
  Taker taker(tensors);
  // An activation after the last layer has no tensors.
  ElementRange last = {};
  for (int layer = network->layer_count(); layer-- > 0 && last.size() == 0;) last = network->LayerRange(layer);
  std::vector<std::pair<const Tensor*, const TensorView*>> found;
  for (const Tensor& tensor : network->layout().tensors()) {
    const bool may_differ = last.begin <= tensor.range.begin && tensor.range.begin < last.end;
    const TensorView* const view = taker.Take(tensor.spec.name, TorchShape(tensor.spec), may_differ);
    if (view != nullptr) found.emplace_back(&tensor, view);
  }
  std::vector<std::pair<NetworkBuffer, const TensorView*>> buffers;
  for (const NetworkBuffer& buffer : network->buffers()) {
    const auto channels = static_cast<int64_t>(buffer.values.size());
    const TensorView* const view = taker.Take(buffer.name, {&channels, 1}, false);
    if (view != nullptr) buffers.emplace_back(buffer, view);
  }
  // Nothing has been written so far: a file that is refused leaves the parameters as they are.
  RETURN_IF_ERROR(taker.Finish(path_));
  // A last layer whose weight has another shape and whose bias has not would begin with half of it.
  const bool is_last_own = !taker.other().empty();
  for (const auto& [tensor, view] : found) {
    if (is_last_own && last.begin <= tensor->range.begin && tensor->range.begin < last.end) continue;
    FromTorchOrder(tensor->spec, ValuesOf(*view), parameters.subspan(tensor->range.begin, tensor->range.size()));
  }
  for (const auto& [buffer, view] : buffers) RETURN_IF_ERROR(network->WriteBuffer(buffer, ValuesOf(*view)));
  std::vector<std::string> lines = {absl::StrCat("starting with the weights of ", path_)};
  if (is_last_own) {
    lines.push_back(absl::StrCat("the last layer keeps its own first values: ", absl::StrJoin(taker.other(), "; ")));
  }
  return lines;
}

}  // namespace starring
