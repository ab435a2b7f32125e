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
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "worker/data/dataset_readers.h"

namespace starring {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kDebianFashionMnist = "/usr/share/datasets/fashion-mnist";

// An entry of any type counts: one with the right name that cannot be read should be reported, not passed over.
bool Exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::optional<std::string> FindFile(const std::string& folder, absl::string_view stem) {
  // Some programs for archives unpack train-images-idx3-ubyte as train-images.idx3-ubyte.
  for (const std::string& name : {std::string(stem), absl::StrReplaceAll(stem, {{"-idx", ".idx"}})}) {
    // The plain file is preferred, because it needs no unzipping.
    for (const absl::string_view suffix : {"", ".gz"}) {
      std::string path = absl::StrCat(folder, "/", name, suffix);
      if (Exists(path)) return path;
    }
  }
  return std::nullopt;
}

absl::Status NotFound(const DatasetOptions& options, const std::vector<std::string>& folders, absl::string_view files,
                      absl::string_view cure) {
  const std::string where = absl::StrCat(", not found in ", absl::StrJoin(folders, ", "));
  return absl::NotFoundError(absl::StrCat("--dataset=", options.name, " needs ", files,
                                          " (each plain or with .gz after it)", folders.empty() ? "" : where, ": ",
                                          cure, ", and give their folder as --data_dir"));
}

// Where to look: data_dir, its folder with the name of the data set, and its folder `other`.
std::vector<std::string> Folders(const DatasetOptions& options, absl::string_view other) {
  if (options.data_dir.empty()) return {};
  return {options.data_dir, absl::StrCat(options.data_dir, "/", options.name),
          absl::StrCat(options.data_dir, "/", other)};
}

absl::StatusOr<Dataset> ReadIdxSet(const DatasetOptions& options, const std::vector<std::string>& folders,
                                   absl::string_view prefix, absl::string_view cure) {
  const std::string images = absl::StrCat(prefix, "-images-idx3-ubyte");
  const std::string labels = absl::StrCat(prefix, "-labels-idx1-ubyte");
  // Both files must come from one folder: otherwise a job could train with the images of one data set and the labels of
  // another.
  for (const std::string& folder : folders) {
    const auto images_path = FindFile(folder, images);
    const auto labels_path = FindFile(folder, labels);
    if (images_path && labels_path) return ReadIdx({.images = *images_path, .labels = *labels_path});
  }
  return NotFound(options, folders, absl::StrCat(images, " and ", labels), cure);
}

absl::StatusOr<TrainAndTest> LoadIdx(const DatasetOptions& options, const std::vector<std::string>& folders,
                                     absl::string_view cure) {
  TrainAndTest sets;
  ASSIGN_OR_RETURN(sets.train, ReadIdxSet(options, folders, "train", cure));
  ASSIGN_OR_RETURN(sets.test, ReadIdxSet(options, folders, "t10k", cure));
  const auto size = [](const Dataset& set) { return absl::StrCat(set.height, " x ", set.width); };
  // The network is built for one shape of image.
  if (size(sets.train) != size(sets.test)) {
    return absl::DataLossError(absl::StrCat("training images have ", size(sets.train), " pixels, test images ",
                                            size(sets.test), ": expected one size, look into ",
                                            absl::StrJoin(folders, ", ")));
  }
  return sets;
}

// Every data_batch_N.bin[.gz] of a folder in the order of N. If N has both a plain and a gzipped file, the plain one.
std::vector<std::string> FindTrainingBatches(const std::string& folder) {
  std::map<int64_t, std::string> batches;
  std::error_code error;
  // A folder that does not exist or cannot be read has no batches: the caller then tries the next one.
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    absl::string_view number = name;
    const bool zipped = absl::ConsumeSuffix(&number, ".gz");
    int64_t n = 0;
    if (!absl::ConsumePrefix(&number, "data_batch_") || !absl::ConsumeSuffix(&number, ".bin") || number.empty() ||
        !std::all_of(number.begin(), number.end(), absl::ascii_isdigit) || !absl::SimpleAtoi(number, &n)) {
      continue;
    }
    // The files are sorted by number and not by name: data_batch_10 comes after data_batch_9, on every file system.
    std::string& path = batches[n];
    if (path.empty() || !zipped) path = it->path().string();
  }
  std::vector<std::string> paths;
  for (auto& [n, path] : batches) paths.push_back(std::move(path));
  return paths;
}

absl::StatusOr<TrainAndTest> LoadCifar10(const DatasetOptions& options) {
  const std::vector<std::string> folders = Folders(options, "cifar-10-batches-bin");
  for (const std::string& folder : folders) {
    const std::vector<std::string> train = FindTrainingBatches(folder);
    const auto test = FindFile(folder, "test_batch.bin");
    // Both come from one folder, as IDX files do.
    if (train.empty() || !test) continue;
    TrainAndTest sets;
    ASSIGN_OR_RETURN(sets.train, ReadCifar10({.paths = train}));
    ASSIGN_OR_RETURN(sets.test, ReadCifar10({.paths = {*test}}));
    return sets;
  }
  return NotFound(options, folders, "data_batch_1.bin to data_batch_5.bin (fewer will do) and test_batch.bin",
                  "fetch them with deploy/get_data.sh cifar10");
}

std::string FactsOf(const Dataset& set) {
  // The checksums tell apart files of equal size: ranks with other pixels are refused before the first step.
  return absl::StrFormat("%d images of %d x %d x %d in %d classes, CRC-32C %08x of images and %08x of labels",
                         set.count, set.height, set.width, set.channels, set.classes, set.images_crc32c,
                         set.labels_crc32c);
}

}  // namespace

std::vector<std::pair<std::string, std::string>> DatasetFacts(const TrainAndTest& sets) {
  return {{"data.train", FactsOf(sets.train)}, {"data.test", FactsOf(sets.test)}};
}

absl::StatusOr<TrainAndTest> LoadDataset(const DatasetOptions& options) {
  if (options.name == "mnist") {
    return LoadIdx(options, Folders(options, "MNIST/raw"), "fetch them with deploy/get_data.sh mnist");
  }
  if (options.name == "fashion-mnist") {
    auto folders = Folders(options, "FashionMNIST/raw");
    // Debian's folder is read only without --data_dir: data from there would surprise a person who has named another
    // folder.
    if (folders.empty()) folders = {std::string(kDebianFashionMnist)};
    return LoadIdx(
        options, folders,
        "install Debian's package dataset-fashion-mnist (deploy/setup.sh does) and give no --data_dir, or get "
        "them from https://github.com/zalandoresearch/fashion-mnist");
  }
  if (options.name == "cifar10") return LoadCifar10(options);
  if (options.name == "synthetic") return MakeSynthetic(options);
  return absl::InvalidArgumentError(
      absl::StrCat("--dataset=", options.name, " is unknown: give mnist, fashion-mnist, cifar10 or synthetic"));
}

}  // namespace starring
