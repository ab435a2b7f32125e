#include "worker/data/dataset.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/check.h"
#include "common/checkpoint/crc32c.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/data_files.h"

namespace starring {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kDebianFolder[] = "/usr/share/datasets/fashion-mnist";

void WriteIdxSet(const std::string& folder, uint32_t train_count, uint32_t test_count) {
  WriteFile(folder, "train-images-idx3-ubyte", IdxImages(train_count, 4, 4));
  WriteFile(folder, "train-labels-idx1-ubyte.gz", Gzip(IdxLabels(train_count)));
  WriteFile(folder, "t10k-images-idx3-ubyte.gz", Gzip(IdxImages(test_count, 4, 4)));
  WriteFile(folder, "t10k-labels-idx1-ubyte", IdxLabels(test_count));
}

TEST(DatasetTest, FindsIdxFilesPlainAndZipped) {
  for (const std::string name : {"mnist", "fashion-mnist"}) {
    const std::string folder = MakeFolder("idx");
    WriteIdxSet(folder, 6, 3);
    const auto sets = LoadDataset({.name = name, .data_dir = folder});
    ASSERT_TRUE(sets.ok()) << sets.status();
    EXPECT_EQ(sets->train.count, 6);
    EXPECT_EQ(sets->test.count, 3);
  }
}

// 7-Zip and others take the last part of the name for its kind.
TEST(DatasetTest, FindsIdxFilesWithADotInTheirNames) {
  const std::string folder = MakeFolder("dots");
  WriteFile(folder, "train-images.idx3-ubyte", IdxImages(5, 4, 4));
  WriteFile(folder, "train-labels.idx1-ubyte", IdxLabels(5));
  WriteFile(folder, "t10k-images.idx3-ubyte", IdxImages(2, 4, 4));
  WriteFile(folder, "t10k-labels.idx1-ubyte.gz", Gzip(IdxLabels(2)));
  const auto sets = LoadDataset({.name = "mnist", .data_dir = folder});
  ASSERT_TRUE(sets.ok()) << sets.status();
  EXPECT_EQ(sets->train.count, 5);
}

TEST(DatasetTest, FindsWhatTorchvisionDownloaded) {
  const std::string folder = MakeFolder("torchvision");
  WriteIdxSet(folder + "/MNIST/raw", 5, 2);
  WriteIdxSet(folder + "/FashionMNIST/raw", 7, 2);
  EXPECT_EQ(LoadDataset({.name = "mnist", .data_dir = folder})->train.count, 5);
  EXPECT_EQ(LoadDataset({.name = "fashion-mnist", .data_dir = folder})->train.count, 7);
}

TEST(DatasetTest, FindsAFolderNamedAfterTheDataSet) {
  const std::string folder = MakeFolder("named");
  WriteIdxSet(folder + "/mnist", 5, 2);
  WriteIdxSet(folder + "/fashion-mnist", 7, 2);
  EXPECT_EQ(LoadDataset({.name = "mnist", .data_dir = folder})->train.count, 5);
  EXPECT_EQ(LoadDataset({.name = "fashion-mnist", .data_dir = folder})->train.count, 7);
}

TEST(DatasetTest, ThePlainFileComesBeforeTheZippedOne) {
  const std::string folder = MakeFolder("both");
  WriteIdxSet(folder, 6, 3);
  WriteFile(folder, "train-images-idx3-ubyte.gz", "not to be read");
  EXPECT_TRUE(LoadDataset({.name = "mnist", .data_dir = folder}).ok());
}

TEST(DatasetTest, TrainingAndTestImagesMustHaveOneSize) {
  const std::string folder = MakeFolder("sizes");
  WriteIdxSet(folder, 6, 3);
  WriteFile(folder, "t10k-images-idx3-ubyte.gz", IdxImages(3, 4, 5));
  const auto sets = LoadDataset({.name = "mnist", .data_dir = folder});
  EXPECT_EQ(sets.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(sets.status().message(), HasSubstr("training images have 4 x 4 pixels, test images 4 x 5"));
}

TEST(DatasetTest, ReadsCifarBatchesInTheOrderOfTheirNumbers) {
  for (const std::string place : {"", "/cifar10", "/cifar-10-batches-bin"}) {
    const std::string folder = MakeFolder("cifar");
    WriteFile(folder + place, "data_batch_10.bin", CifarRecords(1, 10));
    WriteFile(folder + place, "data_batch_9.bin.gz", Gzip(CifarRecords(2, 8)));
    WriteFile(folder + place, "data_batch_2.bin", CifarRecords(3, 5));
    WriteFile(folder + place, "data_batch_2.bin.gz", "not to be read: the plain one is");
    WriteFile(folder + place, "data_batch_x.bin", "not one of them");
    WriteFile(folder + place, "data_batch_3.bin.part", "not one of them");
    WriteFile(folder + place, "batches.meta.txt", "airplane");
    WriteFile(folder + place, "test_batch.bin.gz", Gzip(CifarRecords(4)));
    const auto sets = LoadDataset({.name = "cifar10", .data_dir = folder});
    ASSERT_TRUE(sets.ok()) << sets.status();
    EXPECT_THAT(sets->train.labels, ElementsAre(5, 6, 7, 8, 9, 0));
    EXPECT_THAT(sets->test.labels, ElementsAre(0, 1, 2, 3));
  }
}

// The facts that ranks compare before they train together.
TEST(DatasetTest, FactsTellDataSetsApart) {
  const auto facts = [](const DatasetOptions& options) {
    const auto sets = LoadDataset(options);
    CHECK_OK(sets);
    for (const Dataset* set : {&sets->train, &sets->test}) {
      EXPECT_EQ(set->images_crc32c, ExtendCrc32cByTable(0, std::as_bytes(std::span(set->images))));
      EXPECT_EQ(set->labels_crc32c, ExtendCrc32cByTable(0, std::as_bytes(std::span(set->labels))));
    }
    return DatasetFacts(*sets);
  };
  const std::string folder = MakeFolder("facts");
  WriteIdxSet(folder, 6, 3);
  const auto mnist = facts({.name = "mnist", .data_dir = folder});
  EXPECT_THAT(mnist[0].second, HasSubstr("6 images of 4 x 4 x 1 in 10 classes"));
  WriteFile(folder, "train-images-idx3-ubyte", IdxImages(6, 4, 4, 1));
  EXPECT_NE(facts({.name = "mnist", .data_dir = folder})[0], mnist[0]);
  EXPECT_EQ(facts({.name = "mnist", .data_dir = folder})[1], mnist[1]);

  // More records than one read takes, from one file and from two.
  const std::string one = MakeFolder("one"), two = MakeFolder("two");
  for (const std::string& cifar : {one, two}) WriteFile(cifar, "test_batch.bin", CifarRecords(2));
  WriteFile(one, "data_batch_1.bin", CifarRecords(300));
  WriteFile(two, "data_batch_1.bin", CifarRecords(10));
  WriteFile(two, "data_batch_2.bin", CifarRecords(290, 10));
  EXPECT_EQ(facts({.name = "cifar10", .data_dir = one}), facts({.name = "cifar10", .data_dir = two}));

  const DatasetOptions synthetic{.name = "synthetic", .synthetic_train_count = 20, .synthetic_test_count = 5};
  DatasetOptions other = synthetic;
  other.seed = 1;
  EXPECT_EQ(facts(synthetic), facts(synthetic));
  EXPECT_NE(facts(synthetic), facts(other));
}

TEST(DatasetTest, NotFoundSaysWhatWhereAndHow) {
  const std::string folder = MakeFolder("empty");
  const auto message = [&](const std::string& name, const std::string& data_dir) {
    const auto sets = LoadDataset({.name = name, .data_dir = data_dir});
    EXPECT_EQ(sets.status().code(), absl::StatusCode::kNotFound) << sets.status();
    return std::string(sets.status().message());
  };
  EXPECT_THAT(message("mnist", folder),
              AllOf(HasSubstr("--dataset=mnist needs train-images-idx3-ubyte and train-labels-idx1-ubyte"),
                    HasSubstr("not found in " + folder + ", " + folder + "/mnist, " + folder + "/MNIST/raw"),
                    HasSubstr("deploy/get_data.sh mnist"), HasSubstr("--data_dir")));
  EXPECT_THAT(message("cifar10", folder), AllOf(HasSubstr("data_batch_1.bin"), HasSubstr("test_batch.bin"),
                                                HasSubstr("not found in " + folder), HasSubstr("--data_dir")));
  EXPECT_THAT(message("mnist", ""), HasSubstr("--data_dir"));
  EXPECT_THAT(message("cifar10", ""), HasSubstr("--data_dir"));
  EXPECT_THAT(message("cifar10", folder + "/nowhere"), HasSubstr("not found in " + folder + "/nowhere"));
  // If a folder is given, Debian's files are not used instead.
  EXPECT_THAT(message("fashion-mnist", folder), HasSubstr("not found in " + folder));
}

TEST(DatasetTest, OneSetWithoutTheOtherIsNotFound) {
  const std::string folder = MakeFolder("half");
  WriteIdxSet(folder, 6, 3);
  std::filesystem::remove(folder + "/t10k-labels-idx1-ubyte");
  EXPECT_THAT(LoadDataset({.name = "mnist", .data_dir = folder}).status().message(), HasSubstr("t10k-labels"));
  const std::string cifar = MakeFolder("half_cifar");
  WriteFile(cifar, "data_batch_1.bin", CifarRecords(1));
  EXPECT_EQ(LoadDataset({.name = "cifar10", .data_dir = cifar}).status().code(), absl::StatusCode::kNotFound);
}

TEST(DatasetTest, ImagesAndLabelsComeFromOneFolder) {
  const std::string folder = MakeFolder("mixed");
  WriteIdxSet(folder + "/mnist", 5, 2);
  WriteFile(folder, "train-images-idx3-ubyte", "images of something else");
  EXPECT_TRUE(LoadDataset({.name = "mnist", .data_dir = folder}).ok());
}

TEST(DatasetTest, PassesAReadersErrorOn) {
  const std::string folder = MakeFolder("damaged");
  WriteIdxSet(folder, 6, 3);
  WriteFile(folder, "train-images-idx3-ubyte", IdxImages(5, 4, 4));
  const auto sets = LoadDataset({.name = "mnist", .data_dir = folder});
  EXPECT_EQ(sets.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(sets.status().message(), HasSubstr("holds 5 images"));
}

TEST(DatasetTest, RefusesAnUnknownName) {
  const auto sets = LoadDataset({.name = "imagenet"});
  EXPECT_EQ(sets.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(sets.status().message(), HasSubstr("--dataset=imagenet is unknown: give mnist"));
}

// The real files, whose facts are known: 6000 and 1000 images of each class.
TEST(DatasetTest, FindsFashionMnistWhereDebianPutsIt) {
  const auto sets = LoadDataset({.name = "fashion-mnist"});
  if (!std::filesystem::exists(kDebianFolder)) {
    EXPECT_EQ(sets.status().code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(sets.status().message(), HasSubstr("dataset-fashion-mnist"));
    GTEST_SKIP() << "Debian's package dataset-fashion-mnist is not installed: deploy/setup.sh installs it";
  }
  ASSERT_TRUE(sets.ok()) << sets.status();
  const auto class_counts = [](const Dataset& set) {
    std::vector<int> counts(10);
    for (const uint8_t label : set.labels) ++counts[label];
    return counts;
  };
  EXPECT_EQ(sets->train.image_bytes(), 784);
  EXPECT_EQ(sets->train.count, 60000);
  EXPECT_EQ(sets->test.count, 10000);
  EXPECT_THAT(class_counts(sets->train), Each(6000));
  EXPECT_THAT(class_counts(sets->test), Each(1000));
  EXPECT_EQ(sets->train.labels[0], 9);
}

}  // namespace
}  // namespace starring
