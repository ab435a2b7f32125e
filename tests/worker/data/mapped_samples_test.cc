#include "worker/data/mapped_samples.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/data_files.h"
#include "worker/data/dataset.h"
#include "worker/data/loader.h"
#include "worker/data/normalization.h"

namespace starring {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kTrain = 700, kTest = 30;  // more than a block of a pass

// Bytes that no order of samples and no other place repeats.
std::string Noise(int64_t bytes, uint64_t seed) {
  std::string noise(static_cast<size_t>(bytes), '\0');
  for (int64_t i = 0; i < bytes; ++i) noise[i] = static_cast<char>((seed + 1) * (i + 7) * 2654435761u >> 13);
  return noise;
}

template <class T>
std::string Numbers(int64_t count, T factor) {
  std::string bytes(static_cast<size_t>(count) * sizeof(T), '\0');
  for (int64_t i = 0; i < count; ++i) {
    const T value = static_cast<T>(i % 977) * factor;
    std::memcpy(bytes.data() + i * sizeof value, &value, sizeof value);
  }
  return bytes;
}

std::string Labels(int64_t count) {
  std::string labels(static_cast<size_t>(count), '\0');
  for (int64_t i = 0; i < count; ++i) labels[i] = static_cast<char>(i % 10);
  return labels;
}

void WriteNpy(const std::string& folder, const std::string& type, const std::string& shape, const std::string& train,
              const std::string& test) {
  WriteFile(folder, "train_images.npy", Npy(type, absl::StrCat("(", kTrain, shape, ")"), train));
  WriteFile(folder, "train_labels.npy", Npy("|u1", absl::StrCat("(", kTrain, ",)"), Labels(kTrain)));
  WriteFile(folder, "test_images.npy", Npy(type, absl::StrCat("(", kTest, shape, ")"), test));
  WriteFile(folder, "test_labels.npy", Npy("|u1", absl::StrCat("(", kTest, ",)"), Labels(kTest)));
}

// Writes a set of this kind, and returns how to load it.
DatasetOptions MakeSet(const std::string& kind) {
  const std::string folder = MakeFolder("mapped_" + kind);
  DatasetOptions options{.name = "npy", .data_dir = folder};
  if (kind == "pixels") WriteNpy(folder, "|u1", ", 5, 7, 3", Noise(kTrain * 105, 1), Noise(kTest * 105, 2));
  if (kind == "float") WriteNpy(folder, "<f4", ", 21", Numbers<float>(kTrain * 21, 0.37f), Numbers(kTest * 21, 1.0f));
  if (kind == "double") WriteNpy(folder, "<f8", ", 21", Numbers<double>(kTrain * 21, 0.37), Numbers(kTest * 21, 1.0));
  if (kind == "half") {
    WriteNpy(folder, "<f2", ", 21", Numbers<uint16_t>(kTrain * 21, 31), Numbers<uint16_t>(kTest * 21, 7));
  }
  // More than the numbers that are converted at a time, or that are normalised at a time.
  if (kind == "large_half") {
    WriteNpy(folder, "<f2", ", 9, 57, 3", Numbers<uint16_t>(kTrain * 1539, 31), Numbers<uint16_t>(kTest * 1539, 7));
  }
  if (kind == "wide_double") {
    WriteNpy(folder, "<f8", ", 1600", Numbers<double>(kTrain * 1600, 0.37), Numbers(kTest * 1600, 1.0));
  }
  if (kind == "idx" || kind == "emnist-mnist") {
    options.name = kind == "idx" ? "mnist" : kind;
    const std::string stem = kind == "idx" ? "" : "emnist-mnist-", test = kind == "idx" ? "t10k" : "test";
    WriteFile(folder, stem + "train-images-idx3-ubyte", Idx(0x803, {kTrain, 9, 6}, Noise(kTrain * 54, 3)));
    WriteFile(folder, stem + "train-labels-idx1-ubyte", IdxLabels(kTrain));
    WriteFile(folder, stem + test + "-images-idx3-ubyte", Idx(0x803, {kTest, 9, 6}, Noise(kTest * 54, 4)));
    WriteFile(folder, stem + test + "-labels-idx1-ubyte", IdxLabels(kTest));
  }
  if (kind == "cifar10") {
    options.name = kind;
    WriteFile(folder, "data_batch_1.bin", CifarRecords(kTrain / 2));
    WriteFile(folder, "data_batch_2.bin", CifarRecords(kTrain / 2, kTrain / 2));
    WriteFile(folder, "test_batch.bin", CifarRecords(kTest, 5));
  }
  return options;
}

TrainAndTest Load(DatasetOptions options, MapData map) {
  options.map_data = map;
  auto sets = LoadDataset(options);
  CHECK_OK(sets);
  return *std::move(sets);
}

Loader::Options LoaderOf(const Dataset& dataset) {
  return {.dataset = &dataset,
          .sampler = {.sample_count = dataset.count, .global_batch = 64, .seed = 5},
          .normalization = NormalizationOf(dataset),
          .end_step = 12};
}

// The values of all batches of `end_step` steps, for a CPU and for a GPU, and augmented if they are images.
std::vector<std::byte> Batches(const Dataset& dataset) {
  std::vector<std::byte> values;
  for (const auto format : {Loader::Format::kNormalized, Loader::Format::kStored}) {
    for (const auto augment : {Loader::Augment::kNone, Loader::Augment::kCropFlip}) {
      if (augment == Loader::Augment::kCropFlip && dataset.height == 1) continue;
      Loader::Options options = LoaderOf(dataset);
      options.format = format;
      options.augment = augment;
      auto loader = Loader::Create(options);
      CHECK_OK(loader);
      for (int step = 0; step < 12; ++step) {
        const auto batch = (*loader)->Next();
        CHECK_OK(batch);
        const auto images = std::as_bytes((*batch)->images), stored = std::as_bytes((*batch)->stored);
        values.insert(values.end(), images.begin(), images.end());
        values.insert(values.end(), stored.begin(), stored.end());
      }
    }
  }
  return values;
}

class MappedSamplesTest : public ::testing::TestWithParam<std::string> {};

TEST_P(MappedSamplesTest, TheSameAsInMemory) {
  for (const double test_fraction : {0.0, 0.3}) {
    DatasetOptions options = MakeSet(GetParam());
    if (test_fraction > 0) {
      if (options.name != "npy") continue;
      std::filesystem::remove(options.data_dir + "/test_images.npy");
      std::filesystem::remove(options.data_dir + "/test_labels.npy");
      options.test_fraction = test_fraction;
    }
    const TrainAndTest copied = Load(options, MapData::kNever), mapped = Load(options, MapData::kAlways);
    EXPECT_EQ(copied.train.mapped, nullptr);
    EXPECT_NE(mapped.train.mapped, nullptr);
    EXPECT_TRUE(mapped.train.images.empty());
    EXPECT_EQ(DatasetFacts(copied), DatasetFacts(mapped));
    EXPECT_EQ(ImagesOf(mapped.train), ImagesOf(copied.train));
    EXPECT_EQ(ImagesOf(mapped.test), ImagesOf(copied.test));
    EXPECT_EQ(mapped.train.labels, copied.train.labels);
    const Normalization one = NormalizationOf(copied.train), other = NormalizationOf(mapped.train);
    EXPECT_EQ(one.mean, other.mean);
    EXPECT_EQ(one.deviation, other.deviation);
    EXPECT_EQ(Batches(mapped.train), Batches(copied.train));
  }
}

// A mapping that is shared is of the pages that the system keeps of the file: processes that map it have no others.
TEST_P(MappedSamplesTest, ByDefaultRanksShareOneCopy) {
  if (GetParam().find("double") != std::string::npos) {
    // A mapped float64 has twice the bytes of the copy.
    EXPECT_EQ(Load(MakeSet(GetParam()), MapData::kAuto).train.mapped, nullptr);
    return;
  }
  const DatasetOptions options = MakeSet(GetParam());
  const TrainAndTest sets = Load(options, MapData::kAuto);
  EXPECT_EQ(Batches(sets.train), Batches(Load(options, MapData::kNever).train));
  std::ifstream maps("/proc/self/maps");
  int shared = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find(options.data_dir) == std::string::npos) continue;
    EXPECT_THAT(line, HasSubstr(" r--s "));
    ++shared;
  }
  EXPECT_EQ(shared, GetParam() == "cifar10" ? 3 : 2);
  for (const Dataset* set : {&sets.train, &sets.test}) {
    EXPECT_NE(set->mapped, nullptr);
    EXPECT_EQ(set->images.capacity(), 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, MappedSamplesTest,
                         ::testing::Values("pixels", "float", "double", "half", "large_half", "wide_double", "idx",
                                           "emnist-mnist", "cifar10"),
                         [](const auto& kind) {
                           std::string name = kind.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(MappedSamplesTest, CompressedFilesAreCopied) {
  const DatasetOptions options = MakeSet("cifar10");
  WriteFile(options.data_dir, "data_batch_1.bin.gz", Gzip(CifarRecords(3)));
  std::filesystem::remove(options.data_dir + "/data_batch_1.bin");
  const TrainAndTest sets = Load(options, MapData::kAlways);
  EXPECT_EQ(sets.train.mapped, nullptr);
  EXPECT_EQ(sets.train.count, 3 + kTrain / 2);
  EXPECT_NE(sets.test.mapped, nullptr);
}

// Numbers at an address that a float cannot have.
TEST(MappedSamplesTest, NumbersAtAnyAddress) {
  const DatasetOptions options = MakeSet("float");
  const std::string dictionary = absl::StrCat("{'descr': '<f4', 'fortran_order': False, 'shape': (", kTrain, ", 21)}");
  WriteFile(options.data_dir, "train_images.npy",
            absl::StrCat(std::string("\x93NUMPY\1\0", 8), std::string(1, static_cast<char>(dictionary.size())),
                         std::string(1, '\0'), dictionary, Numbers<float>(kTrain * 21, 0.37f)));
  ASSERT_NE((10 + dictionary.size()) % 4, 0u);
  const TrainAndTest mapped = Load(options, MapData::kAlways);
  EXPECT_TRUE(mapped.train.mapped->decodes());
  EXPECT_EQ(Batches(mapped.train), Batches(Load(options, MapData::kNever).train));
}

// The message of the first batch that is refused.
std::string Refusal(const Dataset& dataset) {
  auto loader = Loader::Create(LoaderOf(dataset));
  CHECK_OK(loader);
  for (int step = 0; step < 12; ++step) {
    const auto batch = (*loader)->Next();
    if (!batch.ok()) return std::string(batch.status().message());
  }
  return "";
}

TEST(MappedSamplesTest, AFileThatIsCutIsASentence) {
  for (const std::string kind : {"pixels", "cifar10"}) {
    const DatasetOptions options = MakeSet(kind);
    const TrainAndTest sets = Load(options, MapData::kAlways);
    const std::string path = options.data_dir + (kind == "pixels" ? "/train_images.npy" : "/data_batch_2.bin");
    const auto bytes = std::filesystem::file_size(path);
    std::filesystem::resize_file(path, 5000);
    EXPECT_THAT(Refusal(sets.train), HasSubstr(absl::StrCat(path, " was cut while it was in use: expected ", bytes,
                                                            " bytes, found 5000: leave a file of data as it is")));
  }
}

// No batch has a byte of the new content. Batches that were filled before the change may still come.
TEST(MappedSamplesTest, AFileThatIsWrittenAgainIsASentence) {
  for (const bool is_cut : {false, true}) {
    const DatasetOptions options = MakeSet("pixels");
    const TrainAndTest sets = Load(options, MapData::kAuto);
    auto loader = Loader::Create(LoaderOf(sets.train));
    CHECK_OK(loader);
    EXPECT_TRUE((*loader)->Next().ok());
    const std::string path = options.data_dir + "/train_images.npy";
    const auto bytes = std::filesystem::file_size(path);
    if (is_cut) {
      // A part of the last page is left, which reads as zeros without a signal.
      std::filesystem::resize_file(path, bytes - 100);
    } else {
      std::filesystem::last_write_time(path, std::filesystem::last_write_time(path) + std::chrono::seconds(1));
    }
    absl::Status status;
    for (int step = 0; step < 12 && status.ok(); ++step) status = (*loader)->Next().status();
    EXPECT_THAT(status.message(), HasSubstr(path + (is_cut ? " was cut" : " was changed") + " while it was in use"));
  }
}

// A download that puts a file in the place of another while the first is read.
TEST(MappedSamplesTest, LabelsAndImagesAreOfOneFile) {
  const DatasetOptions options = MakeSet("cifar10");
  const TrainAndTest sets = Load(options, MapData::kAlways);
  const std::string path = options.data_dir + "/data_batch_2.bin";
  std::filesystem::rename(WriteFile(options.data_dir, "new", CifarRecords(3, 9)), path);
  EXPECT_EQ(Refusal(sets.train), "");  // the old file is there as long as it is mapped
}

// The pieces in which a block of samples is read do not change the sums.
TEST(MappedSamplesTest, StatisticsOfLargeSamples) {
  const std::string folder = MakeFolder("mapped_large"), numbers = Numbers<float>(int64_t{5} * 300 * 301 * 3, 0.37f);
  WriteFile(folder, "train_images.npy", Npy("<f4", "(5, 300, 301, 3)", numbers));
  WriteFile(folder, "train_labels.npy", Npy("|u1", "(5,)", Labels(5)));
  const DatasetOptions options{.name = "npy", .data_dir = folder, .test_fraction = 0.2};
  const TrainAndTest sets = Load(options, MapData::kAlways);
  const Normalization mapped = NormalizationOf(sets.train);
  EXPECT_EQ(mapped.mean, NormalizationOf(Load(options, MapData::kNever).train).mean);
  EXPECT_EQ(mapped.deviation, NormalizationOf(Load(options, MapData::kNever).train).deviation);
}

}  // namespace
}  // namespace starring
