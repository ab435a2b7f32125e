#include "worker/data/dataset_readers.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/arithmetic/philox.h"
#include "common/base/check.h"
#include "common/checkpoint/crc32c.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/data_files.h"
#include "worker/data/files/file_stream.h"

namespace starring {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class IdxReaderTest : public ::testing::Test {
 protected:
  absl::StatusOr<Dataset> Read(const std::string& images, const std::string& labels) {
    return ReadIdx({.images = WriteFile(folder_, "images", images), .labels = WriteFile(folder_, "labels", labels)});
  }

  // The message with which the files are refused.
  std::string Refusal(const std::string& images, const std::string& labels) {
    const auto dataset = Read(images, labels);
    EXPECT_EQ(dataset.status().code(), absl::StatusCode::kDataLoss) << dataset.status();
    return std::string(dataset.status().message());
  }

  const std::string folder_ = MakeFolder("idx_readers");
};

TEST_F(IdxReaderTest, ReadsImagesAndLabels) {
  const auto dataset = Read(IdxImages(3, 2, 4), IdxLabels(3));
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ(dataset->count, 3);
  EXPECT_EQ(dataset->height, 2);
  EXPECT_EQ(dataset->width, 4);
  EXPECT_EQ(dataset->channels, 1);
  EXPECT_EQ(dataset->classes, 3);
  EXPECT_THAT(dataset->labels, ElementsAre(0, 1, 2));
  const std::vector<uint8_t> images = ImagesOf(*dataset);
  ASSERT_EQ(images.size(), 24u);
  for (int i = 0; i < 24; ++i) EXPECT_EQ(images[i], i);
}

TEST_F(IdxReaderTest, GzippedIsTheSame) {
  const auto plain = Read(IdxImages(50, 7, 5), IdxLabels(50));
  const std::vector<uint8_t> plain_images = ImagesOf(*plain);  // the next line writes the file again
  const auto zipped = Read(Gzip(IdxImages(50, 7, 5)), Gzip(IdxLabels(50)));
  ASSERT_TRUE(zipped.ok()) << zipped.status();
  EXPECT_EQ(ImagesOf(*zipped), plain_images);
  EXPECT_EQ(zipped->labels, plain->labels);
}

TEST_F(IdxReaderTest, RefusesATruncatedFile) {
  std::string images = IdxImages(3, 2, 4);
  images.pop_back();
  EXPECT_THAT(Refusal(images, IdxLabels(3)),
              HasSubstr("/images is truncated: expected 24 bytes of images after the header, found 23 at most"));
  // The length of a zipped file is known only at its end.
  EXPECT_THAT(Refusal(Gzip(images), IdxLabels(3)),
              HasSubstr("/images is truncated: expected 24 bytes of images after the header, found 23: copy"));
  std::string labels = IdxLabels(3);
  labels.pop_back();
  EXPECT_THAT(Refusal(IdxImages(3, 2, 4), Gzip(labels)),
              HasSubstr("/labels is truncated: expected 3 bytes of labels after the header, found 2"));
}

TEST_F(IdxReaderTest, RefusesAnyPrefixOfAHeader) {
  const std::string images = IdxImages(3, 2, 4);
  for (size_t size = 0; size < 16; ++size) {
    EXPECT_THAT(Refusal(images.substr(0, size), IdxLabels(3)),
                HasSubstr("/images is truncated: expected a header of 16 bytes, found " + std::to_string(size)));
  }
}

TEST_F(IdxReaderTest, RefusesAFileThatIsTooLong) {
  EXPECT_THAT(Refusal(IdxImages(3, 2, 4) + "x", IdxLabels(3)),
              HasSubstr("/images is too long: expected 24 bytes of images after the header, found more"));
  EXPECT_THAT(Refusal(IdxImages(3, 2, 4), Gzip(IdxLabels(3) + "x")), HasSubstr("/labels is too long"));
}

TEST_F(IdxReaderTest, RefusesAnotherMagicNumber) {
  EXPECT_THAT(
      Refusal(IdxLabels(3), IdxLabels(3)),
      AllOf(HasSubstr("/images begins with 0x00000801, expected 0x00000803"), HasSubstr("give the images file")));
  EXPECT_THAT(Refusal(IdxImages(3, 2, 4), IdxImages(3, 2, 4)),
              HasSubstr("/labels begins with 0x00000803, expected 0x00000801"));
  // A mirror may answer with a page and no error.
  EXPECT_THAT(Refusal("<html><body>404 Not Found</body></html>", IdxLabels(3)),
              HasSubstr("/images is a web page: the download failed"));
}

TEST_F(IdxReaderTest, RefusesCountsThatDisagree) {
  EXPECT_THAT(Refusal(IdxImages(3, 2, 4), IdxLabels(4)),
              AllOf(HasSubstr("/images holds 3 images"), HasSubstr("/labels holds 4 labels")));
}

TEST_F(IdxReaderTest, HasAsManyClassesAsItsLargestLabelNeeds) {
  EXPECT_EQ(Read(IdxImages(3, 2, 4), Idx(0x801, {3}, std::string("\0\x19\1", 3)))->classes, 26);
  EXPECT_EQ(Read(IdxImages(3, 2, 4), Idx(0x801, {3}, std::string("\0\xff\1", 3)))->classes, 256);
  EXPECT_EQ(Read(IdxImages(1, 2, 4), Idx(0x801, {1}, std::string(1, '\0')))->classes, 1);
}

TEST_F(IdxReaderTest, TurnsImagesUpright) {
  const std::string images = WriteFile(folder_, "images", Idx(0x803, {2, 2, 3}, "abcdefABCDEF"));
  const auto dataset =
      ReadIdx({.images = images, .labels = WriteFile(folder_, "labels", IdxLabels(2)), .transposed = true});
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ(dataset->height, 3);
  EXPECT_EQ(dataset->width, 2);
  EXPECT_EQ(TextOf(*dataset), "adbecfADBECF");
  EXPECT_EQ(dataset->images_crc32c, CrcOf(ImagesOf(*dataset)));
}

TEST_F(IdxReaderTest, RefusesSizesThatMakeNoSense) {
  EXPECT_THAT(Refusal(Idx(0x803, {0, 2, 4}, ""), IdxLabels(3)), HasSubstr("/images says that it holds no images"));
  EXPECT_THAT(Refusal(Idx(0x803, {3, 0, 4}, ""), IdxLabels(3)), HasSubstr("images have 0 x 4 pixels"));
  EXPECT_THAT(Refusal(Idx(0x803, {3, 2, 100000}, ""), IdxLabels(3)),
              HasSubstr("2 x 100000 pixels, expected 1 to 8192"));
}

// Memory must not be allocated for what such a header promises: the machine does not have as much.
TEST_F(IdxReaderTest, RefusesAnAbsurdPromiseBeforeAllocating) {
  EXPECT_THAT(Refusal(Idx(0x803, {0xffffffffu, 8192, 8192}, "abc"), IdxLabels(3)),
              HasSubstr("/images is truncated: expected 288230376084602880 bytes"));
  EXPECT_THAT(Refusal(Idx(0x803, {16384, 1024, 1000}, "abc"), IdxLabels(3)),
              AllOf(HasSubstr("/images is truncated: expected 16777216000 bytes"), HasSubstr("found 3 at most")));
  EXPECT_THAT(Refusal(Gzip(Idx(0x803, {16384, 1024, 1000}, "abc")), IdxLabels(3)),
              HasSubstr("/images is truncated: expected 16777216000 bytes"));
}

// A file with holes takes no room on the disk.
TEST_F(IdxReaderTest, MemoryHasALimit) {
  const IdxFiles files = {.images = WriteFile(folder_, "images", Idx(0x803, {16385, 1024, 1024}, "")),
                          .labels = WriteFile(folder_, "labels", IdxLabels(3)),
                          .map = MapData::kNever};
  std::filesystem::resize_file(files.images, 16 + 16385u * 1024ull * 1024ull);
  EXPECT_THAT(ReadIdx(files).status().message(),
              HasSubstr("holds 17180917760 bytes of images, the limit is 17179869184"));
}

// 64 MiB of zeros from 64 KiB: the reader stops one byte after what the header promised.
TEST_F(IdxReaderTest, RefusesAGzipBomb) {
  EXPECT_THAT(Refusal(Gzip(IdxImages(3, 2, 4) + std::string(64 << 20, '\0')), IdxLabels(3)),
              HasSubstr("/images is too long: expected 24 bytes"));
}

TEST_F(IdxReaderTest, NamesAMissingFile) {
  const auto dataset = ReadIdx({.images = folder_ + "/none", .labels = WriteFile(folder_, "labels", IdxLabels(3))});
  EXPECT_EQ(dataset.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(dataset.status().message(), HasSubstr(folder_ + "/none"));
}

class CifarReaderTest : public ::testing::Test {
 protected:
  std::string Refusal(const std::string& content) {
    const auto dataset = ReadCifar({.paths = {WriteFile(folder_, "batch", content)}});
    EXPECT_EQ(dataset.status().code(), absl::StatusCode::kDataLoss) << dataset.status();
    return std::string(dataset.status().message());
  }

  const std::string folder_ = MakeFolder("cifar_reader");
};

TEST_F(CifarReaderTest, InterleavesPlanesOfEveryRecordOfEveryFile) {
  // 300 records are more than one read takes.
  const auto dataset = ReadCifar({.paths = {WriteFile(folder_, "first", CifarRecords(2)),
                                            WriteFile(folder_, "second", Gzip(CifarRecords(300, 2)))}});
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ(dataset->count, 302);
  EXPECT_EQ(dataset->height, 32);
  EXPECT_EQ(dataset->width, 32);
  EXPECT_EQ(dataset->channels, 3);
  EXPECT_EQ(dataset->classes, 10);
  const std::vector<uint8_t> images = ImagesOf(*dataset);
  ASSERT_EQ(std::ssize(images), 302 * 3072);
  ASSERT_EQ(dataset->labels.size(), 302u);
  for (int64_t i = 0; i < 302; ++i) {
    EXPECT_EQ(dataset->labels[i], i % 10);
    for (int64_t p = 0; p < 1024; ++p) {
      for (int64_t c = 0; c < 3; ++c) {
        ASSERT_EQ(images[(i * 1024 + p) * 3 + c], static_cast<uint8_t>(i + p + 80 * c)) << i << ' ' << p;
      }
    }
  }
}

TEST_F(CifarReaderTest, AnyWholeNumberOfRecordsWillDo) {
  for (const int64_t count : {1, 255, 256, 257, 512}) {  // one read takes 256
    const auto dataset = ReadCifar({.paths = {WriteFile(folder_, "batch", CifarRecords(count))}});
    ASSERT_TRUE(dataset.ok()) << dataset.status();
    EXPECT_EQ(dataset->count, count);
  }
}

TEST_F(CifarReaderTest, RefusesAPartOfARecord) {
  std::string records = CifarRecords(3);
  records.pop_back();
  const auto message = AllOf(HasSubstr("/batch is truncated: expected a whole number of records of 3073 bytes"),
                             HasSubstr("found 2 records and 3072 bytes"));
  EXPECT_THAT(Refusal(records), message);
  EXPECT_THAT(Refusal(Gzip(records)), message);
  EXPECT_THAT(Refusal(CifarRecords(300) + "x"), HasSubstr("found 300 records and 1 bytes"));
}

TEST_F(CifarReaderTest, SaysWhatIsNoDataFile) {
  EXPECT_THAT(Refusal("<html>404 Not Found</html>"), HasSubstr("/batch is a web page"));
  EXPECT_THAT(Refusal(Gzip("PK\x03\x04" + CifarRecords(1))), HasSubstr("/batch is a zip archive"));
}

TEST_F(CifarReaderTest, RefusesAnEmptyFile) {
  EXPECT_THAT(Refusal(""), HasSubstr("/batch is empty: expected at least one record of 3073 bytes"));
  EXPECT_THAT(Refusal(Gzip("")), HasSubstr("/batch is empty"));
}

TEST_F(CifarReaderTest, HasAsManyClassesAsItsLargestLabelNeeds) {
  std::string records = CifarRecords(300);
  EXPECT_EQ(ReadCifar({.paths = {WriteFile(folder_, "ten", records)}})->classes, 10);
  records[290 * 3073] = 99;
  EXPECT_EQ(ReadCifar({.paths = {WriteFile(folder_, "hundred", records)}})->classes, 100);
}

// CIFAR-100's records have two labels.
TEST_F(CifarReaderTest, ReadsEitherOfTwoLabels) {
  std::string records;
  for (int64_t i = 0; i < 300; ++i) records += static_cast<char>(i % 20) + CifarRecords(1, i);
  const std::string path = WriteFile(folder_, "two", records);
  const auto coarse = ReadCifar({.paths = {path}, .label_bytes = 2, .label = 0});
  const auto fine = ReadCifar({.paths = {path}, .label_bytes = 2, .label = 1});
  const auto one = ReadCifar({.paths = {WriteFile(folder_, "one", CifarRecords(300))}});
  ASSERT_TRUE(coarse.ok() && fine.ok() && one.ok());
  EXPECT_EQ(coarse->classes, 20);
  EXPECT_EQ(coarse->labels[275], 15);
  EXPECT_EQ(fine->labels, one->labels);
  EXPECT_EQ(ImagesOf(*fine), ImagesOf(*one));
  EXPECT_EQ(ImagesOf(*coarse), ImagesOf(*one));
  EXPECT_THAT(Refusal(records), HasSubstr("/batch is truncated: expected a whole number of records of 3073 bytes"));
}

// A gzip bomb of zeros is made of legal records.
TEST_F(CifarReaderTest, StopsAtTheLimitOfBytes) {
  const std::string path = WriteFile(folder_, "bomb.gz", Gzip(std::string(3073 * 5000, '\0')));
  const auto dataset = ReadCifar({.paths = {path}, .bytes_max = 4999 * 3072});
  EXPECT_EQ(dataset.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(dataset.status().message(), HasSubstr("more than the limit of 15356928 bytes"));
  EXPECT_TRUE(ReadCifar({.paths = {path}, .bytes_max = 5000 * 3072}).ok());
  EXPECT_EQ(CifarFiles().bytes_max, int64_t{16} << 30);  // more than a test can write
}

TEST_F(CifarReaderTest, NamesAMissingFile) {
  const auto dataset = ReadCifar({.paths = {folder_ + "/none"}});
  EXPECT_EQ(dataset.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(dataset.status().message(), HasSubstr(folder_ + "/none"));
}

// The bytes of values, little-endian.
template <class T>
std::string Bytes(std::initializer_list<T> values) {
  return {reinterpret_cast<const char*>(std::data(values)), values.size() * sizeof(T)};
}

class NpyReaderTest : public ::testing::Test {
 protected:
  absl::StatusOr<Dataset> Read(const std::string& images, const std::string& labels) {
    const auto images_stream = FileStream::Open(WriteFile(folder_, "images.npy", images)).value();
    const auto labels_stream = FileStream::Open(WriteFile(folder_, "labels.npy", labels)).value();
    return ReadNpy(*images_stream, labels_stream.get());
  }
  std::string Refusal(const std::string& images, const std::string& labels) {
    const auto dataset = Read(images, labels);
    EXPECT_EQ(dataset.status().code(), absl::StatusCode::kDataLoss) << dataset.status();
    return std::string(dataset.status().message());
  }

  const std::string folder_ = MakeFolder("npy");
  const std::string images_ = Npy("|u1", "(2, 3)", "abcdef");
  const std::string labels_ = Npy("|u1", "(2,)", "\1\2");
};

TEST_F(NpyReaderTest, ShapesAreThoseOfImagesOrColumns) {
  const auto read = [&](const std::string& shape, size_t bytes) {
    const auto set = Read(Npy("|u1", shape, std::string(bytes, 'x')), Npy("|u1", "(2,)", "\1\2"));
    CHECK_OK(set);
    return std::vector<int64_t>{set->count, set->height, set->width, set->channels};
  };
  EXPECT_THAT(read("(2, 5, 7)", 70), ElementsAre(2, 5, 7, 1));
  EXPECT_THAT(read("(2, 5, 7, 3)", 210), ElementsAre(2, 5, 7, 3));
  EXPECT_THAT(read("(2, 5)", 10), ElementsAre(2, 1, 1, 5));
  EXPECT_THAT(read("(2, 65536)", 2 << 16), ElementsAre(2, 1, 1, 65536));
  // Read as it is, with a warning.
  EXPECT_THAT(read("(2, 3, 7, 5)", 210), ElementsAre(2, 3, 7, 5));
}

TEST_F(NpyReaderTest, ReadsMoreThanOnePiece) {
  std::string pixels;
  for (int i = 0; i < 700000; ++i) pixels.push_back(static_cast<char>(i * 7 + i / 251));
  const auto set = Read(Npy("|u1", "(7, 100, 1000)", pixels), Npy("|u1", "(7,)", "abcdefg"));
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(TextOf(*set), pixels);
  EXPECT_EQ(set->images_crc32c, CrcOf(ImagesOf(*set)));
  EXPECT_EQ(set->labels_crc32c, ExtendCrc32cByTable(0, std::as_bytes(std::span(set->labels))));
}

TEST_F(NpyReaderTest, LabelsAreAnyIntegers) {
  for (const std::string kind : {"u", "i"}) {
    for (const int bytes : {1, 2, 4, 8}) {
      std::string elements(2 * static_cast<size_t>(bytes), '\0');
      elements[0] = 5;
      elements[static_cast<size_t>(bytes)] = 100;
      for (const std::string shape : {"(2,)", "(2, 1)"}) {
        const auto set = Read(images_, Npy("<" + kind + std::to_string(bytes), shape, elements));
        ASSERT_TRUE(set.ok()) << set.status();
        EXPECT_THAT(set->labels, ElementsAre(5, 100));
        EXPECT_EQ(set->classes, 101);
      }
    }
  }
}

TEST_F(NpyReaderTest, RefusesOtherLabels) {
  EXPECT_THAT(
      Refusal(images_, Npy("<i2", "(2,)", std::string("\1\0\xff\xff", 4))),
      HasSubstr("/labels.npy: label of sample 1 is -1, expected a class from 0 to 65535, or numbers as float32"));
  EXPECT_THAT(Refusal(images_, Npy("<u4", "(2,)", std::string("\0\0\1\0\0\0\0\0", 8))),
              HasSubstr("/labels.npy: label of sample 0 is 65536, expected a class from 0 to 65535"));
  EXPECT_THAT(Refusal(images_, Npy("|u1", "(3,)", "abc")), HasSubstr("/labels.npy has the shape (3), expected (2)"));
  EXPECT_THAT(Refusal(images_, Npy("|u1", "(2, 1, 1)", "ab")), HasSubstr("has the shape (2, 1, 1), expected (2)"));
  EXPECT_THAT(Refusal(images_, Npy("<i4", "(2, 2)", std::string(16, '\0'))),
              HasSubstr("/labels.npy has the shape (2, 2) and elements of type int32, expected one integer a sample"));
  EXPECT_THAT(Refusal(images_, Npy("|u1", "(2, 2)", std::string("\0\1\2\1", 4))),
              HasSubstr("/labels.npy: label 0 of sample 1 is 2, expected a bit, 0 or 1"));
  EXPECT_THAT(Refusal(images_, Npy("<f4", "(2, 2)", Bytes<float>({0, 0, 0, INFINITY}))),
              HasSubstr("/labels.npy: label 1 of sample 1 is inf, expected a finite float32"));
  EXPECT_THAT(Refusal(images_, Npy("|b1", "(2, 70000)", std::string(140000, '\0'))),
              HasSubstr("has the shape (2, 70000), expected at most 65536 values of a sample"));
}

std::vector<float> NumbersOf(const Dataset& set) {
  const std::vector<uint8_t> images = ImagesOf(set);
  std::vector<float> numbers(images.size() / sizeof(float));
  std::memcpy(numbers.data(), images.data(), images.size());
  return numbers;
}

TEST_F(NpyReaderTest, NumbersAreOfThreeTypes) {
  const auto read = [&](const std::string& images) {
    auto set = Read(images, labels_);
    EXPECT_TRUE(set.ok()) << set.status();
    EXPECT_EQ(set->type, FieldType::kNumbers);
    EXPECT_EQ(set->image_bytes(), 12);
    EXPECT_EQ(set->images_crc32c, CrcOf(ImagesOf(*set)));
    return NumbersOf(*set);
  };
  EXPECT_THAT(read(Npy("<f4", "(2, 3)", Bytes<float>({1.5f, -2, 0, 3e38f, 1e-45f, 0.1f}))),
              ElementsAre(1.5f, -2, 0, 3e38f, 1e-45f, 0.1f));
  EXPECT_THAT(read(Npy("<f8", "(2, 1, 3)", Bytes<double>({0.1, -1e300 / 1e299, 1 + 1e-9, 1e-50, 3.4e38, 7}))),
              ElementsAre(0.1f, -10, 1, 0, 3.4e38f, 7));
  // 1, -2, the largest, the smallest normal one, the smallest one, 1/3.
  EXPECT_THAT(read(Npy("<f2", "(2, 3)", Bytes<uint16_t>({0x3c00, 0xc000, 0x7bff, 0x0400, 0x0001, 0x3555}))),
              ElementsAre(1, -2, 65504, std::ldexp(1.0f, -14), std::ldexp(1.0f, -24), 0.333251953125f));
}

TEST_F(NpyReaderTest, RefusesNumbersThatAreNotFinite) {
  const auto refusal = [&](const std::string& images) { return Refusal(images, labels_); };
  EXPECT_THAT(refusal(Npy("<f4", "(2, 3)", Bytes<float>({0, 0, 0, 0, NAN, 0}))),
              HasSubstr("/images.npy: value 1 of sample 1 is nan, expected a finite float32"));
  EXPECT_THAT(refusal(Npy("<f8", "(2, 3)", Bytes<double>({0, 0, 1e39, 0, 0, 0}))),
              HasSubstr("/images.npy: value 2 of sample 0 is 1e+39, expected a finite float32"));
  EXPECT_THAT(refusal(Npy("<f2", "(2, 3)", Bytes<uint16_t>({0xfc00, 0, 0, 0, 0, 0}))),
              HasSubstr("/images.npy: value 0 of sample 0 is -inf, expected a finite float32"));
  EXPECT_THAT(refusal(Npy("<f2", "(2, 3)", Bytes<uint16_t>({0, 0x7c01, 0, 0, 0, 0}))), HasSubstr("is nan"));
}

TEST_F(NpyReaderTest, LabelsMayBeNumbersOrBits) {
  const auto numbers = Read(images_, Npy("<f8", "(2, 2)", Bytes<double>({1.5, -2, 0.1, 7})));
  ASSERT_TRUE(numbers.ok()) << numbers.status();
  EXPECT_EQ(numbers->target, TargetType::kNumbers);
  EXPECT_EQ(numbers->outputs(), 2);
  EXPECT_EQ(numbers->classes, 0);
  EXPECT_THAT(numbers->labels, testing::IsEmpty());
  EXPECT_THAT(numbers->targets, testing::ElementsAre(1.5f, -2, 0.1f, 7));
  EXPECT_EQ(numbers->labels_crc32c, ExtendCrc32cByTable(0, std::as_bytes(std::span(numbers->targets))));
  EXPECT_EQ(Read(images_, Npy("<f2", "(2,)", Bytes<uint16_t>({0x3c00, 0xc000})))->targets, (std::vector<float>{1, -2}));
  for (const std::string type : {"|b1", "|u1"}) {
    const auto bits = Read(images_, Npy(type, "(2, 3)", std::string("\0\1\1\1\0\0", 6)));
    ASSERT_TRUE(bits.ok()) << bits.status();
    EXPECT_EQ(bits->target, TargetType::kBits);
    EXPECT_EQ(bits->target_values, 3);
    EXPECT_THAT(bits->targets, testing::ElementsAre(0, 1, 1, 1, 0, 0));
  }
  EXPECT_THAT(Read(images_, Npy("|b1", "(2,)", std::string("\1\0", 2)))->targets, testing::ElementsAre(1, 0));
  EXPECT_EQ(Read(images_, Npy("|u1", "(2, 1)", std::string("\1\0", 2)))->target, TargetType::kClass);
}

TEST_F(NpyReaderTest, ReadsMoreNumbersThanOnePiece) {
  std::vector<double> numbers(100'000);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<double>(i);
  const std::string bytes(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(double));
  const auto set = Read(Npy("<f8", "(2, 50000)", bytes), labels_);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->images_crc32c, CrcOf(ImagesOf(*set)));
  const std::vector<float> read = NumbersOf(*set);
  for (size_t i = 0; i < numbers.size(); ++i) ASSERT_EQ(read[i], numbers[i]);
}

TEST_F(NpyReaderTest, RefusesOtherPixels) {
  EXPECT_THAT(Refusal(Npy("<i4", "(2, 3)", std::string(24, 'x')), labels_),
              HasSubstr("/images.npy has elements of type int32, expected uint8"));
  EXPECT_THAT(Refusal(Npy("|u1", "(2,)", "ab"), labels_),
              HasSubstr("/images.npy has the shape (2), expected (samples"));
  EXPECT_THAT(Refusal(Npy("|u1", "(2, 1, 1, 1, 3)", "abcdef"), labels_), HasSubstr("has the shape (2, 1, 1, 1, 3)"));
  EXPECT_THAT(Refusal(Npy("|u1", "(1, 1, 1, 500)", std::string(500, 'x')), labels_),
              HasSubstr("if the channels come second, save numpy.moveaxis(images, 1, -1)"));
  EXPECT_THAT(Refusal(Npy("|u1", "(1, 65537)", std::string(65537, 'x')), labels_), HasSubstr("1 to 65536 columns"));
}

TEST_F(NpyReaderTest, RefusesTooFewAndTooMany) {
  EXPECT_THAT(Refusal(Npy("|u1", "(2, 3)", "abcde"), labels_), HasSubstr("/images.npy is truncated"));
  EXPECT_THAT(Refusal(Gzip(Npy("|u1", "(2, 3)", "abcde")), labels_),
              HasSubstr("/images.npy is truncated: expected 6 bytes after the header, found 5"));
  EXPECT_THAT(Refusal(Npy("|u1", "(2, 3)", "abcdefg"), labels_), HasSubstr("/images.npy is too long"));
  EXPECT_THAT(Refusal(Npy("|u1", "(2, 1099511627776)", "abcdef"), labels_), HasSubstr("/images.npy is truncated"));
}

DatasetOptions Options() {
  DatasetOptions options;
  options.name = "synthetic";
  options.synthetic_train_count = 200;
  options.synthetic_test_count = 100;
  options.synthetic_height = 5;
  options.synthetic_width = 7;
  options.synthetic_channels = 3;
  options.synthetic_classes = 4;
  options.seed = 9;
  return options;
}

TEST(SyntheticTest, HasTheSizeAskedFor) {
  const auto sets = MakeSynthetic(Options());
  ASSERT_TRUE(sets.ok()) << sets.status();
  EXPECT_EQ(sets->train.count, 200);
  EXPECT_EQ(sets->test.count, 100);
  for (const Dataset* set : {&sets->train, &sets->test}) {
    EXPECT_EQ(set->height, 5);
    EXPECT_EQ(set->width, 7);
    EXPECT_EQ(set->channels, 3);
    EXPECT_EQ(set->classes, 4);
    EXPECT_EQ(std::ssize(ImagesOf(*set)), set->count * 105);
    ASSERT_EQ(std::ssize(set->labels), set->count);
    for (int64_t i = 0; i < set->count; ++i) EXPECT_EQ(set->labels[i], i % 4);
  }
}

TEST(SyntheticTest, PixelsAreTheDocumentedOnes) {
  const auto sets = MakeSynthetic(Options());
  const auto byte = [](uint32_t stream, int64_t picture, int64_t b) -> uint32_t {
    const RandomKey key{.seed = 9, .purpose = RandomPurpose::kSynthetic, .stream = stream};
    return key.At(picture * 7 + b / 16)[b % 16 / 4] >> (8 * (b % 4)) & 255;  // 105 bytes are 7 blocks
  };
  for (const int64_t b : {0, 1, 4, 15, 16, 31, 104}) {
    EXPECT_EQ(sets->train.images[6 * 105 + b], (byte(0, 2, b) + 3 * byte(1, 6, b)) / 4) << b;
    EXPECT_EQ(sets->test.images[99 * 105 + b], (byte(0, 3, b) + 3 * byte(2, 99, b)) / 4) << b;
  }
}

TEST(SyntheticTest, SeedsDiffer) {
  DatasetOptions other = Options();
  other.seed = 10;
  EXPECT_EQ(MakeSynthetic(Options())->train.images, MakeSynthetic(Options())->train.images);
  EXPECT_NE(MakeSynthetic(Options())->train.images, MakeSynthetic(other)->train.images);
}

// The nearest mean of the training images names the class of a test image: there is something to learn.
TEST(SyntheticTest, TheClassCanBeLearnt) {
  DatasetOptions options = Options();
  options.synthetic_train_count = 2000;
  options.synthetic_height = 16;
  options.synthetic_width = 16;
  const auto sets = MakeSynthetic(options);
  const int64_t bytes = sets->train.image_bytes();
  std::vector<std::vector<double>> means(4, std::vector<double>(bytes));
  for (int64_t i = 0; i < 2000; ++i) {
    for (int64_t b = 0; b < bytes; ++b) means[i % 4][b] += sets->train.images[i * bytes + b] / 500.0;
  }
  int correct = 0;
  for (int64_t i = 0; i < sets->test.count; ++i) {
    int nearest = 0;
    std::vector<double> distance(4);
    for (int k = 0; k < 4; ++k) {
      for (int64_t b = 0; b < bytes; ++b) distance[k] += std::pow(sets->test.images[i * bytes + b] - means[k][b], 2);
      if (distance[k] < distance[nearest]) nearest = k;
    }
    correct += nearest == sets->test.labels[i];
  }
  EXPECT_GE(correct, 99);
}

TEST(SyntheticTest, RefusesImpossibleSizes) {
  const auto message = [](const DatasetOptions& options) {
    const auto sets = MakeSynthetic(options);
    EXPECT_EQ(sets.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(sets.status().message());
  };
  DatasetOptions options = Options();
  options.synthetic_width = 0;
  EXPECT_THAT(message(options), HasSubstr("synthetic width is 0, expected 1 to 8192"));
  options = Options();
  options.synthetic_height = 8193;
  EXPECT_THAT(message(options), HasSubstr("synthetic height is 8193, expected 1 to 8192"));
  options = Options();
  options.synthetic_channels = 257;
  EXPECT_THAT(message(options), HasSubstr("synthetic channels is 257, expected 1 to 256"));
  options = Options();
  options.synthetic_height = options.synthetic_width = options.synthetic_channels = 1;
  options.synthetic_test_count = int64_t{1} << 32;
  EXPECT_THAT(message(options), HasSubstr("synthetic test_count is 4294967296, expected 1 to 4294967295"));
  options = Options();
  options.synthetic_classes = 257;
  EXPECT_THAT(message(options), HasSubstr("synthetic classes is 257, expected 1 to 256"));
  options = Options();
  options.synthetic_train_count = int64_t{1} << 40;
  EXPECT_THAT(message(options), HasSubstr("synthetic train_count is 1099511627776, expected 1 to 163617801"));
}

}  // namespace
}  // namespace starring
