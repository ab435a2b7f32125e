#include "worker/data/dataset.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
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

TEST(DatasetTest, FindsMnistsRelatives) {
  const std::string folder = MakeFolder("relatives");
  WriteIdxSet(folder + "/KMNIST/raw", 5, 2);
  EXPECT_EQ(LoadDataset({.name = "kmnist", .data_dir = folder})->train.count, 5);
  const std::string emnist = folder + "/EMNIST/raw";
  for (const std::string split : {"letters", "balanced", "byclass", "bymerge", "digits", "mnist"}) {
    WriteFile(emnist, "emnist-" + split + "-train-images-idx3-ubyte", Idx(0x803, {2, 2, 3}, "abcdefABCDEF"));
    WriteFile(emnist, "emnist-" + split + "-train-labels-idx1-ubyte", Idx(0x801, {2}, "\1\5"));
    WriteFile(emnist, "emnist-" + split + "-test-images-idx3-ubyte.gz", Gzip(Idx(0x803, {1, 2, 3}, "ghijkl")));
    WriteFile(emnist, "emnist-" + split + "-test-labels-idx1-ubyte.gz", Gzip(Idx(0x801, {1}, "\2")));
    const auto sets = LoadDataset({.name = "emnist-" + split, .data_dir = folder});
    ASSERT_TRUE(sets.ok()) << sets.status();
    // The files have the images lying on their side.
    EXPECT_EQ(sets->test.height, 3);
    EXPECT_EQ(TextOf(sets->test), "gjhkil");
    const std::map<std::string, int> classes = {{"letters", 27}, {"balanced", 47}, {"byclass", 62}, {"bymerge", 47}};
    EXPECT_EQ(sets->train.classes, classes.contains(split) ? classes.at(split) : 10);
  }
}

TEST(DatasetTest, TheClassesAreThoseOfBothSets) {
  const std::string folder = MakeFolder("classes");
  WriteIdxSet(folder, 6, 3);
  const auto classes = [&](const std::string& train_labels, const std::string& test_labels) {
    WriteFile(folder, "train-labels-idx1-ubyte", Idx(0x801, {6}, train_labels));
    std::filesystem::remove(folder + "/train-labels-idx1-ubyte.gz");
    WriteFile(folder, "t10k-labels-idx1-ubyte", Idx(0x801, {3}, test_labels));
    const auto sets = LoadDataset({.name = "mnist", .data_dir = folder});
    CHECK_OK(sets);
    EXPECT_EQ(sets->train.classes, sets->test.classes);
    return sets->train.classes;
  };
  EXPECT_EQ(classes("\1\1\1\1\1\1", "\2\2\2"), 10);
  EXPECT_EQ(classes("\1\1\x19\1\1\1", "\2\2\2"), 26);
  EXPECT_EQ(classes("\1\1\1\1\1\1", "\2\x2d\2"), 46);
}

TEST(DatasetTest, ReadsCifar100) {
  for (const std::string place : {"", "/cifar100", "/cifar-100-binary"}) {
    const std::string folder = MakeFolder("cifar100");
    WriteFile(folder + place, "train.bin", "\7" + CifarRecords(1, 4) + "\3" + CifarRecords(1, 5));
    WriteFile(folder + place, "test.bin.gz", Gzip("\1" + CifarRecords(1, 6)));
    const auto fine = LoadDataset({.name = "cifar100", .data_dir = folder});
    ASSERT_TRUE(fine.ok()) << fine.status();
    EXPECT_THAT(fine->train.labels, ElementsAre(4, 5));
    EXPECT_EQ(fine->test.classes, 100);
    const auto coarse =
        LoadDataset({.name = "cifar100", .data_dir = folder, .cifar100_labels = Cifar100Labels::kCoarse});
    EXPECT_THAT(coarse->train.labels, ElementsAre(7, 3));
    EXPECT_EQ(coarse->test.classes, 20);
    EXPECT_EQ(ImagesOf(coarse->train), ImagesOf(fine->train));
  }
}

TEST(DatasetTest, ReadsArraysOfNumpy) {
  const std::string folder = MakeFolder("npy");
  const std::string train = Npy("|u1", "(2, 1, 3)", "abcdef"), train_labels = Npy("<i8", "(2,)", std::string(16, '\0'));
  const std::string test = Npy("|u1", "(1, 1, 3)", "ghi"), test_labels = Npy("|i1", "(1,)", "\7");
  WriteFile(folder, "train_images.npy", train);
  WriteFile(folder, "train_labels.npy.gz", Gzip(train_labels));
  WriteFile(folder, "test_images.npy", test);
  WriteFile(folder, "test_labels.npy", test_labels);
  const auto files = LoadDataset({.name = "npy", .data_dir = folder});
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->train.classes, 8);
  const std::string ours = WriteFile(folder, "ours.npz",
                                     Zip({{"train_images.npy", train},
                                          {"train_labels.npy", train_labels, true},
                                          {"test_images.npy", test},
                                          {"test_labels.npy", test_labels}}));
  const std::string keras = WriteFile(folder, "keras.npz",
                                      Zip({{"x_test.npy", test},
                                           {"x_train.npy", train, true},
                                           {"y_train.npy", train_labels},
                                           {"y_test.npy", test_labels}}));
  for (const std::string& archive : {ours, keras}) {
    const auto sets = LoadDataset({.name = "npy", .data_dir = archive});
    ASSERT_TRUE(sets.ok()) << sets.status();
    EXPECT_EQ(DatasetFacts(*sets), DatasetFacts(*files));
  }
  const auto other = LoadDataset(
      {.name = "npy", .data_dir = WriteFile(folder, "other.npz", Zip({{"a.npy", train}, {"b.npy", test}}))});
  EXPECT_EQ(other.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(other.status().message(), HasSubstr("other.npz has the arrays a.npy, b.npy: expected train_images"));
  EXPECT_THAT(LoadDataset({.name = "npy", .data_dir = folder, .test_fraction = 0.5}).status().message(),
              HasSubstr("has a test set of 1 samples: leave --test_fraction out"));
  std::filesystem::remove(folder + "/test_labels.npy");
  EXPECT_THAT(LoadDataset({.name = "npy", .data_dir = folder}).status().message(),
              AllOf(HasSubstr("test_images.npy and test_labels.npy"), HasSubstr("not found in " + folder)));
}

TEST(DatasetTest, APartOfTheSamplesBecomesATestSet) {
  const std::string folder = MakeFolder("split");
  std::string pixels, labels;
  for (int i = 0; i < 100; ++i) {
    pixels.append(6, static_cast<char>(i));
    labels.push_back(static_cast<char>(i));
  }
  WriteFile(folder, "train_images.npy", Npy("|u1", "(100, 2, 3)", pixels));
  WriteFile(folder, "train_labels.npy", Npy("|u1", "(100,)", labels));
  const auto load = [&](double fraction, uint64_t seed) {
    return LoadDataset({.name = "npy", .data_dir = folder, .test_fraction = fraction, .split_seed = seed});
  };
  EXPECT_THAT(load(0, 1).status().message(), HasSubstr("has no test set: give --test_fraction=0.1"));
  EXPECT_THAT(load(0.001, 1).status().message(), HasSubstr("--test_fraction=0.001 of 100 samples are 0"));
  const auto sets = load(0.25, 1);
  ASSERT_TRUE(sets.ok()) << sets.status();
  EXPECT_EQ(sets->test.count, 25);
  EXPECT_EQ(sets->train.count, 75);
  // Both sets have the classes of all samples, and their samples keep their order.
  EXPECT_EQ(sets->train.classes, 100);
  EXPECT_TRUE(std::ranges::is_sorted(sets->test.labels));
  EXPECT_TRUE(std::ranges::is_sorted(sets->train.labels));
  std::vector<uint16_t> all = sets->train.labels;
  all.insert(all.end(), sets->test.labels.begin(), sets->test.labels.end());
  std::ranges::sort(all);
  std::vector<uint16_t> expected(100);
  std::iota(expected.begin(), expected.end(), uint16_t{0});
  EXPECT_EQ(all, expected);
  for (const Dataset* set : {&sets->train, &sets->test}) {
    const std::vector<uint8_t> images = ImagesOf(*set);
    for (int64_t i = 0; i < set->count * 6; ++i) EXPECT_EQ(images[i], set->labels[i / 6]);
  }
  EXPECT_EQ(DatasetFacts(*sets), DatasetFacts(*load(0.25, 1)));
  EXPECT_NE(DatasetFacts(*sets), DatasetFacts(*load(0.25, 2)));
}

TEST(DatasetTest, TargetsAreThoseOfTheLoss) {
  const std::string folder = MakeFolder("targets");
  const std::string csv = WriteFile(folder, "train.csv", "x,y\n1,0\n2,1\n3,1\n4,0\n");
  const auto load = [&](std::string name, std::string place, std::optional<TargetType> target) {
    DatasetOptions options{.name = std::move(name), .data_dir = std::move(place), .test_fraction = 0.5};
    options.target = target;
    return LoadDataset(options);
  };
  const auto classes = load("csv", csv, std::nullopt), numbers = load("csv", csv, TargetType::kNumbers),
             bits = load("csv", csv, TargetType::kBits);
  ASSERT_TRUE(numbers.ok()) << numbers.status();
  ASSERT_TRUE(bits.ok()) << bits.status();
  EXPECT_EQ(classes->train.outputs(), 2);
  for (const auto* const sets : {&*numbers, &*bits}) {
    EXPECT_EQ(sets->train.outputs(), 1);
    EXPECT_THAT(sets->train.labels, testing::IsEmpty());
    EXPECT_EQ(sets->train.targets, std::vector<float>(classes->train.labels.begin(), classes->train.labels.end()));
    EXPECT_EQ(sets->test.targets, std::vector<float>(classes->test.labels.begin(), classes->test.labels.end()));
    EXPECT_EQ(ImagesOf(sets->train), ImagesOf(classes->train));
  }
  EXPECT_EQ(bits->train.target, TargetType::kBits);
  EXPECT_THAT(DatasetFacts(*bits)[0].second, HasSubstr("numbers with bits, 1 a sample, CRC-32C"));
  // The other number of a two-class label is 1, whatever it is called.
  const std::string libsvm = WriteFile(folder, "a9a", "-1 1:1\n+1 1:2\n+1 1:3\n-1 1:4\n");
  EXPECT_EQ(load("libsvm", libsvm, TargetType::kBits)->train.targets, bits->train.targets);
  EXPECT_EQ(load("libsvm", libsvm, TargetType::kNumbers)->train.targets.size(), 2u);
  const std::string names = WriteFile(folder, "names.csv", "x,y\n1,no\n2,yes\n3,maybe\n");
  EXPECT_THAT(load("csv", names, TargetType::kBits).status().message(),
              HasSubstr("has labels that are 3 classes; the loss of the layer file, bce, needs bits: .npy labels that "
                        "are bool, or two classes, 0 and 1"));
  EXPECT_THAT(load("csv", names, TargetType::kNumbers).status().message(),
              HasSubstr("names.csv, line 2, column 2 (\"y\"): expected a finite number of float32 as label, found "
                        "\"no\": the model's loss compares with numbers"));
  WriteFile(folder, "npy/train_images.npy", Npy("|u1", "(4, 1)", "abcd"));
  WriteFile(folder, "npy/train_labels.npy", Npy("|b1", "(4, 2)", std::string("\0\1\0\1\1\1\1\1", 8)));
  const auto npy = load("npy", folder + "/npy", TargetType::kBits);
  ASSERT_TRUE(npy.ok()) << npy.status();
  EXPECT_EQ(npy->train.targets.size(), 4u);
  EXPECT_EQ(npy->test.targets.size(), 4u);
  EXPECT_THAT(load("npy", folder + "/npy", TargetType::kClass).status().message(),
              HasSubstr("has labels that are bits, 2 a sample; the loss of the layer file, softmax, needs classes"));
  WriteFile(folder, "npy/test_images.npy", Npy("|u1", "(1, 1)", "a"));
  WriteFile(folder, "npy/test_labels.npy", Npy("|b1", "(1, 3)", std::string("\0\1\0", 3)));
  EXPECT_THAT(LoadDataset({.name = "npy", .data_dir = folder + "/npy"}).status().message(),
              HasSubstr("training labels are bits, 2 a sample, test labels bits, 3 a sample: expected one type"));
}

TEST(DatasetTest, ReadsTables) {
  const std::string folder = MakeFolder("tables");
  const std::string csv = WriteFile(folder, "train.csv.gz", Gzip("x,kind\n1,yes\n2,no\n3,yes\n"));
  WriteFile(folder, "test.csv", "x,kind\n4,no\n");
  const std::string libsvm = WriteFile(folder, "train.libsvm", "1 1:1\n0 1:2\n1 1:3\n");
  WriteFile(folder, "test.libsvm.gz", Gzip("0 1:4\n"));
  const auto tables = LoadDataset({.name = "csv", .data_dir = folder, .csv_label = "kind"});
  const auto lines = LoadDataset({.name = "libsvm", .data_dir = folder});
  ASSERT_TRUE(tables.ok()) << tables.status();
  ASSERT_TRUE(lines.ok()) << lines.status();
  EXPECT_THAT(tables->class_names, ElementsAre("no", "yes"));
  EXPECT_THAT(lines->class_names, ElementsAre());
  EXPECT_THAT(tables->train.labels, ElementsAre(1, 0, 1));
  EXPECT_EQ(ImagesOf(tables->test), ImagesOf(lines->test));
  EXPECT_EQ(tables->test.classes, 2);
  // The facts say whether both mean the same classes.
  const std::string facts = DatasetFacts(*lines)[0].second;
  EXPECT_THAT(facts, testing::StartsWith("3 images of 1 x 1 x 1 numbers in 2 classes, CRC-32C "));
  EXPECT_THAT(DatasetFacts(*tables)[0].second,
              facts + absl::StrFormat(", %08x of classes' labels", Crc32c(absl::string_view("no\0yes", 6))));
  EXPECT_EQ(DatasetFacts(*tables)[1], DatasetFacts(*lines)[1]);
  // One file, with any name.
  EXPECT_THAT(LoadDataset({.name = "csv", .data_dir = csv, .csv_label = "2"}).status().message(),
              HasSubstr("/train.csv.gz has no test set: give --test_fraction=0.1"));
  const std::string other = WriteFile(folder, "a9a", "1 1:1\n0 1:2\n1 1:3\n");
  EXPECT_EQ(LoadDataset({.name = "libsvm", .data_dir = other, .test_fraction = 0.4})->test.count, 1);
  EXPECT_EQ(LoadDataset({.name = "libsvm", .data_dir = libsvm, .test_fraction = 0.4})->train.count, 2);
}

TEST(DatasetTest, ClassesThatMayBeValuesSaySo) {
  EXPECT_EQ(DescribeClassNames({}), "");
  EXPECT_EQ(DescribeClassNames({"no", "1.5"}), "class 0 has the label \"no\", class 1 \"1.5\"");
  EXPECT_EQ(DescribeClassNames({"-1", "1.5"}),
            "class 0 has the label \"-1\", class 1 \"1.5\"; if these numbers are values to predict, give a layer file "
            "with the line loss { mse {} }");
}

TEST(DatasetTest, NotFoundSaysHowToWriteATable) {
  const std::string folder = MakeFolder("no_tables");
  const auto message = [](const std::string& name, const std::string& data_dir) {
    const auto sets = LoadDataset({.name = name, .data_dir = data_dir});
    EXPECT_EQ(sets.status().code(), absl::StatusCode::kNotFound) << sets.status();
    return std::string(sets.status().message());
  };
  EXPECT_EQ(message("csv", folder),
            "--dataset=csv needs train.csv, and test.csv if there is a test set (each plain or with .gz after it), not "
            "found in " +
                folder +
                ": write them with to_csv(index=False) of pandas, or give one .csv file of all samples as --data_dir, "
                "and give their folder as --data_dir");
  EXPECT_THAT(message("libsvm", ""), HasSubstr("--dataset=libsvm needs train.libsvm, and test.libsvm if there is"));
  // A file that is not there, by a whole path and by a part of one.
  EXPECT_THAT(message("csv", folder + "/none.csv"),
              testing::StartsWith("--data_dir=" + folder + "/none.csv does not exist: correct the path; "));
  EXPECT_THAT(message("libsvm", "none.libsvm"),
              testing::StartsWith("--data_dir=none.libsvm does not exist in " +
                                  std::filesystem::current_path().string() + ": correct the path; "));
  // A file that is there, or may be, is not said to be missing.
  std::filesystem::create_symlink("loop.csv", folder + "/loop.csv");
  EXPECT_THAT(message("csv", folder + "/loop.csv"),
              testing::StartsWith("--data_dir=" + folder +
                                  "/loop.csv cannot be opened: Too many levels of symbolic "
                                  "links: correct the path or its rights; "));
  EXPECT_THAT(message("csv", folder + "/" + std::string(300, 'a')),
              HasSubstr(" cannot be opened: File name too long: correct"));
}

TEST(DatasetTest, LabelsMayBeRareWhereNothingTrains) {
  std::string table = "y,a\n";
  for (int i = 0; i < 40; ++i) absl::StrAppend(&table, i, ".5,", i, "\n");
  const std::string path = WriteFile(MakeFolder("rare_table"), "all.csv", table);
  DatasetOptions options = {.name = "csv", .data_dir = path, .test_fraction = 0.25};
  EXPECT_EQ(LoadDataset(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.labels_may_be_rare = true;
  EXPECT_EQ(LoadDataset(options)->test.count, 10);
}

TEST(DatasetTest, APartOfATableBecomesATestSet) {
  std::string table = "y,a,b\n";
  for (int i = 0; i < 100; ++i) absl::StrAppend(&table, i % 2 == 0 ? "+1" : "-1", ",", i, ",", i % 2, "\n");
  const std::string path = WriteFile(MakeFolder("split_table"), "all.csv", table);
  const auto sets = LoadDataset({.name = "csv", .data_dir = path, .test_fraction = 0.25});
  ASSERT_TRUE(sets.ok()) << sets.status();
  EXPECT_EQ(sets->train.count, 75);
  EXPECT_EQ(sets->test.count, 25);
  EXPECT_THAT(sets->class_names, ElementsAre("-1", "+1"));
  std::vector<bool> seen(100);
  for (const Dataset* set : {&sets->train, &sets->test}) {
    EXPECT_EQ(set->type, FieldType::kNumbers);
    EXPECT_EQ(set->classes, 2);
    ASSERT_EQ(std::ssize(ImagesOf(*set)), set->count * 8);
    EXPECT_EQ(set->images_crc32c, CrcOf(ImagesOf(*set)));
    for (int64_t i = 0; i < set->count; ++i) {
      float numbers[2];
      std::memcpy(numbers, set->images.data() + 8 * i, sizeof(numbers));
      EXPECT_EQ(numbers[1], 1 - set->labels[i]);
      EXPECT_EQ(static_cast<int>(numbers[0]) % 2, numbers[1]);
      EXPECT_FALSE(seen[static_cast<size_t>(numbers[0])]);
      seen[static_cast<size_t>(numbers[0])] = true;
    }
  }
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
  EXPECT_THAT(sets.status().message(), HasSubstr("training images have 4 x 4 x 1 pixels, test images 4 x 5 x 1"));
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
      EXPECT_EQ(set->images_crc32c, CrcOf(ImagesOf(*set)));
      const std::vector<uint8_t> labels(set->labels.begin(), set->labels.end());
      EXPECT_EQ(set->labels_crc32c, ExtendCrc32cByTable(0, std::as_bytes(std::span(labels))));
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
  EXPECT_THAT(message("cifar10", folder + "/nowhere"), HasSubstr("=" + folder + "/nowhere does not exist: correct "));
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
  EXPECT_THAT(sets.status().message(), HasSubstr("--dataset=imagenet is unknown: give one of mnist, fashion-mnist"));
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
    for (const uint16_t label : set.labels) ++counts[label];
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
