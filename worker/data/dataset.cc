#include "worker/data/dataset.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/arithmetic/philox.h"
#include "common/base/status.h"
#include "common/checkpoint/crc32c.h"
#include "worker/data/dataset_readers.h"
#include "worker/data/files/cell_text.h"
#include "worker/data/files/data_memory.h"
#include "worker/data/files/file_stream.h"
#include "worker/data/sampler.h"
#include "worker/data/table_labels.h"

namespace starring {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kDebianFashionMnist = "/usr/share/datasets/fashion-mnist";
constexpr absl::string_view kEmnistCure =
    "get EMNIST's gzip.zip from https://www.nist.gov/itl/products-and-services/emnist-dataset";

enum class Format { kIdx, kCifar10, kCifar100, kNpy, kCsv, kLibsvm, kSynthetic };

// One name of --dataset.
struct NamedDataset {
  absl::string_view name;
  Format format;
  int64_t classes_min;
  absl::string_view folder;       // that torchvision or the data set's own archive makes
  absl::string_view train, test;  // the files' names, or their beginnings
  absl::string_view cure;         // where the files come from
  bool transposed = false;
};

constexpr NamedDataset kDatasets[] = {
    {"mnist", Format::kIdx, 10, "MNIST/raw", "train", "t10k", "fetch them with deploy/get_data.sh mnist"},
    {"fashion-mnist", Format::kIdx, 10, "FashionMNIST/raw", "train", "t10k",
     "install Debian's package dataset-fashion-mnist (deploy/setup.sh does) and give no --data_dir, or get them from "
     "https://github.com/zalandoresearch/fashion-mnist"},
    {"kmnist", Format::kIdx, 10, "KMNIST/raw", "train", "t10k", "get them from https://github.com/rois-codh/kmnist"},
    {"emnist-balanced", Format::kIdx, 47, "EMNIST/raw", "emnist-balanced-train", "emnist-balanced-test", kEmnistCure,
     true},
    {"emnist-byclass", Format::kIdx, 62, "EMNIST/raw", "emnist-byclass-train", "emnist-byclass-test", kEmnistCure,
     true},
    {"emnist-bymerge", Format::kIdx, 47, "EMNIST/raw", "emnist-bymerge-train", "emnist-bymerge-test", kEmnistCure,
     true},
    {"emnist-digits", Format::kIdx, 10, "EMNIST/raw", "emnist-digits-train", "emnist-digits-test", kEmnistCure, true},
    // Its labels are 1 to 26, so class 0 is empty, as in torchvision.
    {"emnist-letters", Format::kIdx, 27, "EMNIST/raw", "emnist-letters-train", "emnist-letters-test", kEmnistCure,
     true},
    {"emnist-mnist", Format::kIdx, 10, "EMNIST/raw", "emnist-mnist-train", "emnist-mnist-test", kEmnistCure, true},
    {"cifar10", Format::kCifar10, 10, "cifar-10-batches-bin", "", "", "fetch them with deploy/get_data.sh cifar10"},
    {"cifar100", Format::kCifar100, 100, "cifar-100-binary", "", "",
     "get CIFAR-100's binary version from https://www.cs.toronto.edu/~kriz/cifar.html"},
    {"npy", Format::kNpy, 1, "", "train", "test",
     "write them with numpy.save, or all into one FILE.npz with numpy.savez"},
    {"csv", Format::kCsv, 1, "", "train.csv", "test.csv",
     "write them with to_csv(index=False) of pandas, or give one .csv file of all samples as --data_dir"},
    {"libsvm", Format::kLibsvm, 1, "", "train.libsvm", "test.libsvm",
     "write them with sklearn.datasets.dump_svmlight_file(..., zero_based=False), or give one file of all samples as "
     "--data_dir"},
    {"synthetic", Format::kSynthetic, 1, "", "", "", ""},
};
constexpr int64_t kCifar100CoarseClasses = 20;
constexpr int64_t kBlockBytes = 256 << 10;  // fits the second-level cache

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

absl::Status NotFound(const DatasetOptions& options, const NamedDataset& named, const std::vector<std::string>& folders,
                      absl::string_view files) {
  const std::string needs =
      absl::StrCat("--dataset=", options.name, " needs ", files, " (each plain or with .gz after it)");
  const std::string cure = absl::StrCat(": ", named.cure, ", and give their folder as --data_dir");
  // A slip in the path is mended there, and by no other files.
  std::error_code why;
  const fs::file_type type = fs::status(options.data_dir, why).type();
  if (!options.data_dir.empty() && type == fs::file_type::not_found) {
    std::error_code ignored;
    const std::string here =
        fs::path(options.data_dir).is_absolute() ? "" : absl::StrCat(" in ", fs::current_path(ignored).string());
    return absl::NotFoundError(
        absl::StrCat("--data_dir=", options.data_dir, " does not exist", here, ": correct the path; ", needs, cure));
  }
  if (!options.data_dir.empty() && type == fs::file_type::none) {
    return absl::NotFoundError(absl::StrCat("--data_dir=", options.data_dir, " cannot be opened: ", why.message(),
                                            ": correct the path or its rights; ", needs, cure));
  }
  const std::string where = folders.empty() ? "" : absl::StrCat(", not found in ", absl::StrJoin(folders, ", "));
  return absl::NotFoundError(absl::StrCat(needs, where, cure));
}

// Where to look: data_dir, its folder with the name of the data set, and the one that others make.
std::vector<std::string> Folders(const DatasetOptions& options, const NamedDataset& named) {
  // Debian's folder is read only without --data_dir: data from there would surprise a person who has named another
  // folder.
  if (options.data_dir.empty() && named.name == "fashion-mnist") return {std::string(kDebianFashionMnist)};
  if (options.data_dir.empty()) return {};
  if (named.folder.empty()) return {options.data_dir};
  return {options.data_dir, absl::StrCat(options.data_dir, "/", named.name),
          absl::StrCat(options.data_dir, "/", named.folder)};
}

absl::StatusOr<Dataset> ReadIdxSet(const DatasetOptions& options, const NamedDataset& named, absl::string_view prefix) {
  const std::vector<std::string> folders = Folders(options, named);
  const std::string images = absl::StrCat(prefix, "-images-idx3-ubyte");
  const std::string labels = absl::StrCat(prefix, "-labels-idx1-ubyte");
  // Both files must come from one folder: otherwise a job could train with the images of one data set and the labels of
  // another.
  for (const std::string& folder : folders) {
    const auto images_path = FindFile(folder, images);
    const auto labels_path = FindFile(folder, labels);
    if (!images_path || !labels_path) continue;
    return ReadIdx(
        {.images = *images_path, .labels = *labels_path, .transposed = named.transposed, .map = options.map_data});
  }
  return NotFound(options, named, folders, absl::StrCat(images, " and ", labels));
}

absl::StatusOr<TrainAndTest> LoadIdx(const DatasetOptions& options, const NamedDataset& named) {
  TrainAndTest sets;
  ASSIGN_OR_RETURN(sets.train, ReadIdxSet(options, named, named.train));
  ASSIGN_OR_RETURN(sets.test, ReadIdxSet(options, named, named.test));
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

absl::StatusOr<TrainAndTest> LoadCifar(const DatasetOptions& options, const NamedDataset& named) {
  const bool is_100 = named.format == Format::kCifar100;
  const std::vector<std::string> folders = Folders(options, named);
  for (const std::string& folder : folders) {
    CifarFiles train = {.map = options.map_data}, test = train;
    if (is_100) {
      const int64_t label = options.cifar100_labels == Cifar100Labels::kCoarse ? 0 : 1;
      train = test = {.paths = {}, .label_bytes = 2, .label = label, .map = options.map_data};
      if (const auto path = FindFile(folder, "train.bin")) train.paths = {*path};
    } else {
      train.paths = FindTrainingBatches(folder);
    }
    const auto path = FindFile(folder, is_100 ? "test.bin" : "test_batch.bin");
    // Both come from one folder, as IDX files do.
    if (train.paths.empty() || !path) continue;
    test.paths = {*path};
    TrainAndTest sets;
    ASSIGN_OR_RETURN(sets.train, ReadCifar(train));
    ASSIGN_OR_RETURN(sets.test, ReadCifar(test));
    return sets;
  }
  return NotFound(
      options, named, folders,
      is_100 ? "train.bin and test.bin" : "data_batch_1.bin to data_batch_5.bin (fewer will do) and test_batch.bin");
}

// A test set that is not there has no samples.
absl::StatusOr<Dataset> ReadNpySet(const DatasetOptions& options, const NamedDataset& named, absl::string_view prefix) {
  const std::string images = absl::StrCat(prefix, "_images.npy"), labels = absl::StrCat(prefix, "_labels.npy");
  const auto images_path = FindFile(options.data_dir, images);
  const auto labels_path = FindFile(options.data_dir, labels);
  if (!images_path && !labels_path && prefix == named.test) return Dataset();
  const bool needs_labels = !options.for_prediction || prefix == named.train;
  if (options.data_dir.empty() || !images_path || (needs_labels && !labels_path)) {
    return NotFound(options, named, Folders(options, named),
                    needs_labels ? absl::StrCat(images, " and ", labels) : images);
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<FileStream> images_stream, FileStream::Open(*images_path));
  std::unique_ptr<FileStream> labels_stream;
  if (labels_path) {
    ASSIGN_OR_RETURN(labels_stream, FileStream::Open(*labels_path));
  }
  return ReadNpy(*images_stream, labels_stream.get(), options.map_data);
}

absl::StatusOr<TrainAndTest> LoadNpy(const DatasetOptions& options, const NamedDataset& named) {
  TrainAndTest sets;
  if (absl::EndsWith(options.data_dir, ".npz")) {
    ASSIGN_OR_RETURN(sets, ReadNpz(options.data_dir, options.for_prediction));
  } else {
    ASSIGN_OR_RETURN(sets.test, ReadNpySet(options, named, named.test));
    if (!options.for_prediction || sets.test.count == 0) {
      ASSIGN_OR_RETURN(sets.train, ReadNpySet(options, named, named.train));
    }
  }
  return sets;
}

// A folder with the files of both sets, or one file, whatever its name.
absl::StatusOr<TrainAndTest> LoadTable(const DatasetOptions& options, const NamedDataset& named) {
  TableFiles files{.label = options.csv_label,
                   .numbers = options.target == TargetType::kNumbers,
                   .columns_min = options.columns_min,
                   .may_lack_labels = options.for_prediction,
                   .labels_may_be_rare = options.labels_may_be_rare};
  std::error_code ignored;
  if (Exists(options.data_dir) && !fs::is_directory(options.data_dir, ignored)) {
    files.train = options.data_dir;
  } else {
    const auto test = FindFile(options.data_dir, named.test);
    const auto train = options.for_prediction && test ? test : FindFile(options.data_dir, named.train);
    if (options.data_dir.empty() || !train) {
      return NotFound(options, named, Folders(options, named),
                      absl::StrCat(named.train, ", and ", named.test, " if there is a test set"));
    }
    files.train = *train;
    files.test = train == test ? "" : test.value_or("");
  }
  ASSIGN_OR_RETURN(TrainAndTest sets, named.format == Format::kCsv ? ReadCsv(files) : ReadLibsvm(files));
  // One file alone is asked about as a whole.
  if (options.for_prediction && sets.test.count == 0) std::swap(sets.train, sets.test);
  return sets;
}

absl::StatusOr<TrainAndTest> Read(const DatasetOptions& options, const NamedDataset& named) {
  switch (named.format) {
    case Format::kIdx:
      return LoadIdx(options, named);
    case Format::kCifar10:
    case Format::kCifar100:
      return LoadCifar(options, named);
    case Format::kNpy:
      return LoadNpy(options, named);
    case Format::kCsv:
    case Format::kLibsvm:
      return LoadTable(options, named);
    case Format::kSynthetic:
      break;
  }
  return MakeSynthetic(options);
}

int64_t ClassesMin(const DatasetOptions& options, const NamedDataset& named) {
  const bool is_coarse = named.format == Format::kCifar100 && options.cifar100_labels == Cifar100Labels::kCoarse;
  return is_coarse ? kCifar100CoarseClasses : named.classes_min;
}

// "10 classes", "numbers, 3 a sample"
std::string DescribeTargets(const Dataset& set) {
  switch (set.target) {
    case TargetType::kNumbers:
      return absl::StrCat("numbers, ", set.target_values, " a sample");
    case TargetType::kBits:
      return absl::StrCat("bits, ", set.target_values, " a sample");
    case TargetType::kClass:
      break;
  }
  return absl::StrCat(set.classes, " classes");
}

// Two classes become one bit.
absl::Status MakeBits(Dataset& set) {
  RETURN_IF_ERROR(CheckDataFits("the labels as bits", set.count * static_cast<int64_t>(sizeof(float))));
  set.targets.assign(set.labels.begin(), set.labels.end());
  // The bits take the place of the labels, whose memory is given back.
  set.labels.clear();
  set.labels.shrink_to_fit();
  set.classes = 0;
  set.target = TargetType::kBits;
  set.target_values = 1;
  set.labels_crc32c = ExtendCrc32c(0, std::as_bytes(std::span(set.targets)));
  return absl::OkStatus();
}

// Gives the sets the targets that the model's loss needs, if they can have them.
absl::Status UseTargets(const DatasetOptions& options, TrainAndTest& sets) {
  const Dataset& found = sets.train;
  if (!options.target.has_value() || *options.target == found.target) return absl::OkStatus();
  if (*options.target == TargetType::kBits && found.target == TargetType::kClass && found.classes == 2) {
    RETURN_IF_ERROR(MakeBits(sets.train));
    return MakeBits(sets.test);
  }
  constexpr absl::string_view kNeeds[] = {
      "softmax, needs classes: .npy labels that are integers, or a table's column without loss { mse {} }",
      "mse, needs numbers: .npy labels that are float32, or a table's column of numbers",
      "bce, needs bits: .npy labels that are bool, or two classes, 0 and 1"};
  return absl::InvalidArgumentError(absl::StrCat(
      "--dataset=", options.name, " has labels that are ", DescribeTargets(found), "; the loss of the layer file, ",
      kNeeds[static_cast<size_t>(*options.target)], "; or change the layer file's loss"));
}

std::string FactsOf(const Dataset& set) {
  // The checksums tell apart files of equal size: ranks with other pixels are refused before the first step.
  return absl::StrFormat("%d images of %d x %d x %d%s %s, CRC-32C %08x of images and %08x of labels", set.count,
                         set.height, set.width, set.channels, set.type == FieldType::kNumbers ? " numbers" : "",
                         set.target == TargetType::kClass ? absl::StrCat("in ", set.classes, " classes")
                                                          : absl::StrCat("with ", DescribeTargets(set)),
                         set.images_crc32c, set.labels_crc32c);
}

// The samples whose numbers are in `samples`, in this order.
absl::StatusOr<Dataset> Select(const Dataset& all, std::span<const int64_t> samples) {
  Dataset part{.count = std::ssize(samples),
               .height = all.height,
               .width = all.width,
               .channels = all.channels,
               .classes = all.classes,
               .type = all.type,
               .target = all.target,
               .target_values = all.target_values,
               .images = {},
               .mapped = {},
               .labels = {},
               .targets = {}};
  // A part of mapped samples is a list of their numbers.
  const int64_t image_bytes = all.mapped == nullptr ? part.image_bytes() : static_cast<int64_t>(sizeof(uint32_t));
  RETURN_IF_ERROR(CheckDataFits("a part of the data set", part.count * (image_bytes + part.batch_target_bytes())));
  part.images.reserve(all.mapped == nullptr ? static_cast<size_t>(part.count * part.image_bytes()) : 0);
  part.labels.reserve(all.target == TargetType::kClass ? static_cast<size_t>(part.count) : 0);
  part.targets.reserve(static_cast<size_t>(part.count * part.target_values));
  for (const int64_t sample : samples) {
    if (all.mapped == nullptr) {
      const auto image = all.images.begin() + sample * all.image_bytes();
      part.images.insert(part.images.end(), image, image + all.image_bytes());
    }
    if (all.target == TargetType::kClass) part.labels.push_back(all.labels[static_cast<size_t>(sample)]);
    const auto targets = all.targets.begin() + sample * all.target_values;
    part.targets.insert(part.targets.end(), targets, targets + all.target_values);
  }
  if (all.mapped != nullptr) part.mapped = all.mapped->Pick(samples);
  const int64_t block = std::max<int64_t>(1, kBlockBytes / part.image_bytes());
  part.ForEachBlock(0, part.count, block, [&part](std::span<const uint8_t> values, int64_t) {
    part.images_crc32c = ExtendCrc32c(part.images_crc32c, std::as_bytes(values));
  });
  part.labels_crc32c = all.target == TargetType::kClass ? ExtendCrc32c(0, std::as_bytes(std::span(part.labels)))
                                                        : ExtendCrc32c(0, std::as_bytes(std::span(part.targets)));
  return part;
}

// A set in memory is within limits that a mapped one may exceed.
absl::Status CheckMapped(const Dataset& set) {
  // Sums of squares of pixels are exact up to 2^53.
  constexpr int64_t kPixelsMax = (int64_t{1} << 53) / (255 * 255);
  if (set.type == FieldType::kPixels && set.count > kPixelsMax / (set.height * set.width)) {
    return absl::InvalidArgumentError(absl::StrCat("the data set has ", set.count, " images of ", set.height, " x ",
                                                   set.width, " pixels: expected at most ", kPixelsMax,
                                                   " pixels in all"));
  }
  // The order of an epoch, and that of the next.
  RETURN_IF_ERROR(CheckDataFits("the order of the samples", 2 * set.count * static_cast<int64_t>(sizeof(int64_t))));
  // All was read by now: nothing of it from a file that was changed meanwhile.
  return set.mapped->Check();
}

// `whole` has all samples in its training set.
absl::StatusOr<TrainAndTest> Split(const DatasetOptions& options, const TrainAndTest& whole) {
  const Dataset& all = whole.train;
  // All ranks compute this product with the same float64 numbers, so all cut at the same sample.
  const auto test_count = static_cast<int64_t>(static_cast<double>(all.count) * options.test_fraction);
  if (test_count < 1 || test_count >= all.count) {
    return absl::InvalidArgumentError(absl::StrCat("--test_fraction=", options.test_fraction, " of ", all.count,
                                                   " samples are ", test_count,
                                                   ": expected one sample or more in each set"));
  }
  RETURN_IF_ERROR(CheckDataFits("the order of a split", all.count * static_cast<int64_t>(sizeof(int64_t))));
  std::vector<int64_t> order = RandomOrder(all.count, {.seed = options.split_seed, .purpose = RandomPurpose::kSplit});
  const auto test_end = order.begin() + test_count;
  // Samples that were together in the file stay near each other in memory.
  std::sort(order.begin(), test_end);
  std::sort(test_end, order.end());
  TrainAndTest sets{.train = {}, .test = {}, .class_names = whole.class_names};
  ASSIGN_OR_RETURN(sets.test, Select(all, {order.begin(), test_end}));
  ASSIGN_OR_RETURN(sets.train, Select(all, {test_end, order.end()}));
  return sets;
}

}  // namespace

std::string DescribeClassNames(const std::vector<std::string>& names) {
  if (names.empty()) return "";
  constexpr size_t kShown = 5;
  std::string line = "class 0 has the label ";
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    absl::StrAppend(&line, i > 0 ? absl::StrCat(", class ", i, " ") : "", ShowCell(names[i]));
  }
  if (names.size() > kShown) absl::StrAppend(&line, ", and so on to class ", names.size() - 1);
  if (HaveFraction(names)) {
    absl::StrAppend(&line, "; if these numbers are values to predict, give a layer file with the line loss { mse {} }");
  }
  return line;
}

std::vector<std::pair<std::string, std::string>> DatasetFacts(const TrainAndTest& sets) {
  std::string train = FactsOf(sets.train);
  // The numbers of classes alone do not tell whether two runs mean the same classes.
  if (!sets.class_names.empty()) {
    const std::string names = absl::StrJoin(sets.class_names, absl::string_view("\0", 1));
    absl::StrAppendFormat(&train, ", %08x of classes' labels", Crc32c(names));
  }
  return {{"data.train", std::move(train)}, {"data.test", FactsOf(sets.test)}};
}

absl::StatusOr<TrainAndTest> LoadDataset(const DatasetOptions& options) {
  const auto* const named = std::ranges::find(kDatasets, options.name, &NamedDataset::name);
  if (named == std::end(kDatasets)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--dataset=", options.name, " is unknown: give one of ",
                     absl::StrJoin(kDatasets, ", ",
                                   [](std::string* out, const NamedDataset& one) { absl::StrAppend(out, one.name); })));
  }
  ASSIGN_OR_RETURN(TrainAndTest sets, Read(options, *named));
  if (sets.test.count > 0 && options.test_fraction > 0) {
    return absl::InvalidArgumentError(absl::StrCat("--dataset=", options.name, " has a test set of ", sets.test.count,
                                                   " samples: leave --test_fraction out"));
  }
  if (sets.test.count == 0 && (options.test_fraction == 0 || sets.train.count == 0)) {
    return absl::NotFoundError(absl::StrCat(options.data_dir,
                                            " has no test set: give --test_fraction=0.1 to test on a "
                                            "tenth of its samples, or write a test set, too"));
  }
  if (sets.test.count == 0) {
    ASSIGN_OR_RETURN(sets, Split(options, sets));
  }
  for (const Dataset* set : {&sets.train, &sets.test}) {
    if (set->mapped != nullptr) RETURN_IF_ERROR(CheckMapped(*set));
  }
  if (sets.train.count == 0) return sets;  // for a prediction
  const auto size = [](const Dataset& set) {
    return absl::StrCat(set.height, " x ", set.width, " x ", set.channels,
                        set.type == FieldType::kPixels ? " pixels" : " numbers");
  };
  // The network is built for one shape of image.
  if (size(sets.train) != size(sets.test)) {
    return absl::DataLossError(absl::StrCat("training images have ", size(sets.train), ", test images ",
                                            size(sets.test), ": expected one size and type, look into ",
                                            absl::StrJoin(Folders(options, *named), ", ")));
  }
  if (sets.train.target != sets.test.target || sets.train.target_values != sets.test.target_values) {
    return absl::DataLossError(absl::StrCat("training labels are ", DescribeTargets(sets.train), ", test labels ",
                                            DescribeTargets(sets.test), ": expected one type and number, look into ",
                                            absl::StrJoin(Folders(options, *named), ", ")));
  }
  if (sets.train.target == TargetType::kClass) {
    // A class that is in one of the sets alone is a class of both. With a split both sets have those of the whole.
    sets.train.classes = std::max({sets.train.classes, sets.test.classes, ClassesMin(options, *named)});
    sets.test.classes = sets.train.classes;
  }
  RETURN_IF_ERROR(UseTargets(options, sets));
  return sets;
}

}  // namespace starring
