#include "worker/data/cifar_reader.h"

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/data_files.h"

namespace starring {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CifarReaderTest : public ::testing::Test {
 protected:
  std::string Refusal(const std::string& content) {
    const auto dataset = ReadCifar10({.paths = {WriteFile(folder_, "batch", content)}});
    EXPECT_EQ(dataset.status().code(), absl::StatusCode::kDataLoss) << dataset.status();
    return std::string(dataset.status().message());
  }

  const std::string folder_ = MakeFolder("cifar_reader");
};

TEST_F(CifarReaderTest, InterleavesPlanesOfEveryRecordOfEveryFile) {
  // 300 is more than are read at once.
  const auto dataset = ReadCifar10({.paths = {WriteFile(folder_, "first", CifarRecords(2)),
                                              WriteFile(folder_, "second", Gzip(CifarRecords(300, 2)))}});
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ(dataset->count, 302);
  EXPECT_EQ(dataset->height, 32);
  EXPECT_EQ(dataset->width, 32);
  EXPECT_EQ(dataset->channels, 3);
  EXPECT_EQ(dataset->classes, 10);
  ASSERT_EQ(std::ssize(dataset->images), 302 * 3072);
  ASSERT_EQ(dataset->labels.size(), 302u);
  for (int64_t i = 0; i < 302; ++i) {
    EXPECT_EQ(dataset->labels[i], i % 10);
    for (int64_t p = 0; p < 1024; ++p) {
      for (int64_t c = 0; c < 3; ++c) {
        ASSERT_EQ(dataset->images[(i * 1024 + p) * 3 + c], static_cast<uint8_t>(i + p + 80 * c)) << i << ' ' << p;
      }
    }
  }
}

TEST_F(CifarReaderTest, AnyWholeNumberOfRecordsWillDo) {
  for (const int64_t count : {1, 255, 256, 257, 512}) {
    const auto dataset = ReadCifar10({.paths = {WriteFile(folder_, "batch", CifarRecords(count))}});
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

TEST_F(CifarReaderTest, RefusesAnEmptyFile) {
  EXPECT_THAT(Refusal(""), HasSubstr("/batch is empty: expected at least one record of 3073 bytes"));
  EXPECT_THAT(Refusal(Gzip("")), HasSubstr("/batch is empty"));
}

TEST_F(CifarReaderTest, RefusesALabelOutOfRange) {
  std::string records = CifarRecords(300);
  records[290 * 3073] = 10;
  EXPECT_THAT(Refusal(records), HasSubstr("/batch: label of record 290 is 10, expected 0 to 9"));
}

// A gzip bomb of zeros is made of legal records.
TEST_F(CifarReaderTest, StopsAtTheLimitOfBytes) {
  const std::string path = WriteFile(folder_, "bomb.gz", Gzip(std::string(3073 * 5000, '\0')));
  const auto dataset = ReadCifar10({.paths = {path}, .bytes_max = 4999 * 3072});
  EXPECT_EQ(dataset.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(dataset.status().message(), HasSubstr("more than the limit of 15356928 bytes"));
  EXPECT_TRUE(ReadCifar10({.paths = {path}, .bytes_max = 5000 * 3072}).ok());
  EXPECT_EQ(CifarFiles().bytes_max, int64_t{16} << 30);  // more than a test can write
}

TEST_F(CifarReaderTest, NamesAMissingFile) {
  const auto dataset = ReadCifar10({.paths = {folder_ + "/none"}});
  EXPECT_EQ(dataset.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(dataset.status().message(), HasSubstr(folder_ + "/none"));
}

}  // namespace
}  // namespace starring
