#include "worker/data/dataset.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/status.h"
#include "worker/data/cifar_reader.h"
#include "worker/data/idx_reader.h"
#include "worker/data/synthetic.h"

namespace starring {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kDebianFashionMnist = "/usr/share/datasets/fashion-mnist";

// Regular or not: an entry of the right name that cannot be read should be reported, not passed over.
bool Exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::optional<std::string> FindFile(const std::vector<std::string>& folders, absl::string_view stem) {
  for (const std::string& folder : folders) {
    for (const absl::string_view suffix : {"", ".gz"}) {
      std::string path = absl::StrCat(folder, "/", stem, suffix);
      if (Exists(path)) return path;
    }
  }
  return std::nullopt;
}

absl::Status NotFound(const DatasetOptions& options, const std::vector<std::string>& folders, absl::string_view files,
                      absl::string_view source) {
  return absl::NotFoundError(
      absl::StrCat("--dataset=", options.name, " needs ", files, ", each plain or with .gz behind it",
                   folders.empty() ? "" : absl::StrCat(": not found in ", absl::StrJoin(folders, ", ")),
                   ": get them from ", source, " (deploy/get_data.sh does) and give their folder as --data_dir"));
}

absl::StatusOr<Dataset> ReadIdxSet(const DatasetOptions& options, const std::vector<std::string>& folders,
                                   absl::string_view prefix, absl::string_view source) {
  const auto images = FindFile(folders, absl::StrCat(prefix, "-images-idx3-ubyte"));
  const auto labels = FindFile(folders, absl::StrCat(prefix, "-labels-idx1-ubyte"));
  if (!images || !labels) {
    return NotFound(options, folders, absl::StrCat(prefix, "-images-idx3-ubyte and ", prefix, "-labels-idx1-ubyte"),
                    source);
  }
  return ReadIdx({.images = *images, .labels = *labels});
}

absl::StatusOr<TrainAndTest> LoadIdx(const DatasetOptions& options, const std::vector<std::string>& folders,
                                     absl::string_view source) {
  TrainAndTest sets;
  ASSIGN_OR_RETURN(sets.train, ReadIdxSet(options, folders, "train", source));
  ASSIGN_OR_RETURN(sets.test, ReadIdxSet(options, folders, "t10k", source));
  const auto size = [](const Dataset& set) { return absl::StrCat(set.height, " x ", set.width); };
  if (size(sets.train) != size(sets.test)) {
    return absl::DataLossError(absl::StrCat("training images have ", size(sets.train), " pixels, test images ",
                                            size(sets.test), ": expected one size, look into ",
                                            absl::StrJoin(folders, ", ")));
  }
  return sets;
}

std::vector<std::string> IdxFolders(const std::string& data_dir, absl::string_view torchvision_folder) {
  if (data_dir.empty()) return {};
  return {data_dir, absl::StrCat(data_dir, "/", torchvision_folder, "/raw")};
}

// Every data_batch_N.bin[.gz] of a folder in the order of N; of a plain and a gzipped one with the same N the plain
// one.
std::vector<std::string> FindTrainingBatches(const std::string& folder) {
  std::map<int64_t, std::string> batches;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    absl::string_view number = name;
    const bool zipped = absl::ConsumeSuffix(&number, ".gz");
    int64_t n = 0;
    if (!absl::ConsumePrefix(&number, "data_batch_") || !absl::ConsumeSuffix(&number, ".bin") || number.empty() ||
        !std::all_of(number.begin(), number.end(), absl::ascii_isdigit) || !absl::SimpleAtoi(number, &n)) {
      continue;
    }
    std::string& path = batches[n];
    if (path.empty() || !zipped) path = it->path().string();
  }
  std::vector<std::string> paths;
  for (auto& [n, path] : batches) paths.push_back(std::move(path));
  return paths;
}

absl::StatusOr<TrainAndTest> LoadCifar10(const DatasetOptions& options) {
  std::vector<std::string> folders;
  if (!options.data_dir.empty()) {
    folders = {options.data_dir, absl::StrCat(options.data_dir, "/cifar-10-batches-bin")};
  }
  CifarFiles train;
  for (const std::string& folder : folders) {
    train.paths = FindTrainingBatches(folder);
    if (!train.paths.empty()) break;
  }
  const auto test = FindFile(folders, "test_batch.bin");
  if (train.paths.empty() || !test) {
    return NotFound(options, folders, "data_batch_1.bin to data_batch_5.bin (fewer will do) and test_batch.bin",
                    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz");
  }
  TrainAndTest sets;
  ASSIGN_OR_RETURN(sets.train, ReadCifar10(train));
  ASSIGN_OR_RETURN(sets.test, ReadCifar10({.paths = {*test}}));
  return sets;
}

}  // namespace

absl::StatusOr<TrainAndTest> LoadDataset(const DatasetOptions& options) {
  if (options.name == "mnist") {
    return LoadIdx(options, IdxFolders(options.data_dir, "MNIST"), "https://ossci-datasets.s3.amazonaws.com/mnist");
  }
  if (options.name == "fashion-mnist") {
    auto folders = IdxFolders(options.data_dir, "FashionMNIST");
    if (folders.empty()) folders = {std::string(kDebianFashionMnist)};
    return LoadIdx(options, folders,
                   "Debian's package dataset-fashion-mnist, or https://github.com/zalandoresearch/fashion-mnist");
  }
  if (options.name == "cifar10") return LoadCifar10(options);
  if (options.name == "synthetic") return MakeSynthetic(options);
  return absl::InvalidArgumentError(
      absl::StrCat("--dataset=", options.name, " is unknown: give mnist, fashion-mnist, cifar10 or synthetic"));
}

}  // namespace starring
