#include "worker/data/files/file_stream.h"

#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/data_files.h"

namespace starring {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Pattern(size_t count) {
  std::string bytes(count, '\0');
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(i * i / 7 + i);
  return bytes;
}

// Reads the whole file, `step` bytes at a time.
absl::StatusOr<std::string> ReadAll(const std::string& path, size_t step) {
  ASSIGN_OR_RETURN(const std::unique_ptr<FileStream> stream, FileStream::Open(path));
  std::string all;
  std::vector<uint8_t> part(step);
  for (int64_t read = static_cast<int64_t>(step); read == static_cast<int64_t>(step);) {
    ASSIGN_OR_RETURN(read, stream->Read(part));
    all.append(part.begin(), part.begin() + read);
  }
  return all;
}

class FileStreamTest : public ::testing::Test {
 protected:
  const std::string folder_ = MakeFolder("file_stream");
};

TEST_F(FileStreamTest, PlainAndGzippedFilesReadTheSame) {
  // Also sizes around the stream's buffer of 256 KiB.
  for (const size_t size : {0, 1, 2, 3, 1000, (256 << 10) - 1, 256 << 10, (256 << 10) + 1, 700000}) {
    const std::string content = Pattern(size);
    const std::string plain = WriteFile(folder_, "plain", content);
    const std::string zipped = WriteFile(folder_, "zipped", Gzip(content));
    for (const size_t step : {7, 4096, 1 << 20}) {
      EXPECT_EQ(ReadAll(plain, step).value(), content) << size << " bytes by " << step;
      EXPECT_EQ(ReadAll(zipped, step).value(), content) << size << " bytes by " << step;
    }
  }
}

TEST_F(FileStreamTest, TheContentDecidesNotTheName) {
  EXPECT_EQ(ReadAll(WriteFile(folder_, "data.gz", "not zipped"), 100).value(), "not zipped");
  EXPECT_EQ(ReadAll(WriteFile(folder_, "data", Gzip("zipped")), 100).value(), "zipped");
}

TEST_F(FileStreamTest, GzipMembersOneBehindTheOtherAreOneFile) {
  EXPECT_EQ(ReadAll(WriteFile(folder_, "two", Gzip("one, ") + Gzip("") + Gzip("two")), 4).value(), "one, two");
}

TEST_F(FileStreamTest, EveryTruncationOfAGzipFileIsFound) {
  const std::string zipped = Gzip(Pattern(60));
  for (size_t size = 2; size < zipped.size(); ++size) {
    const auto read = ReadAll(WriteFile(folder_, "cut.gz", zipped.substr(0, size)), 64);
    ASSERT_EQ(read.status().code(), absl::StatusCode::kDataLoss) << size;
    EXPECT_THAT(read.status().message(), AllOf(HasSubstr("cut.gz is truncated"), HasSubstr("before the end mark")));
  }
}

TEST_F(FileStreamTest, NoFlippedBitOfAGzipFileChangesTheData) {
  const std::string content = Pattern(60);
  const std::string zipped = Gzip(content);
  int64_t refused = 0;
  // From byte 10 on: before it, the header's time, flags and system do not affect the data.
  for (size_t bit = 80; bit < 8 * zipped.size(); ++bit) {
    std::string damaged = zipped;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ 1 << (bit % 8));
    const auto read = ReadAll(WriteFile(folder_, "damaged.gz", damaged), 64);
    if (read.ok()) {
      EXPECT_EQ(*read, content) << bit;  // some bits have no meaning
      continue;
    }
    EXPECT_EQ(read.status().code(), absl::StatusCode::kDataLoss) << bit;
    EXPECT_THAT(read.status().message(), HasSubstr("damaged.gz"));
    ++refused;
  }
  EXPECT_GT(refused, 8 * (std::ssize(zipped) - 10) * 9 / 10);
}

TEST_F(FileStreamTest, GarbageBehindGzipDataIsFound) {
  const auto read = ReadAll(WriteFile(folder_, "long.gz", Gzip("data") + "garbage"), 64);
  EXPECT_EQ(read.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(read.status().message(), HasSubstr("long.gz has damaged gzip data"));
}

// As gunzip and Python do.
TEST_F(FileStreamTest, ZerosBehindGzipDataAreLeftOut) {
  for (const size_t zeros : {1, 512, 600'000}) {
    for (const size_t step : {3, 64}) {
      EXPECT_EQ(*ReadAll(WriteFile(folder_, "padded.gz", Gzip("data") + std::string(zeros, '\0')), step), "data");
    }
  }
  const auto read = ReadAll(WriteFile(folder_, "long.gz", Gzip("data") + std::string(9, '\0') + "garbage"), 64);
  EXPECT_EQ(read.status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(FileStreamTest, SizeBoundHoldsForTheBestCompression) {
  const std::string content(10 << 20, '\0');
  const std::string zipped = Gzip(content);
  const auto stream = FileStream::Open(WriteFile(folder_, "zeros.gz", zipped));
  EXPECT_GE((*stream)->size_bytes_max(), 10 << 20);
  EXPECT_EQ((*stream)->size_bytes_max(), std::ssize(zipped) * 1032);
  EXPECT_EQ((*FileStream::Open(WriteFile(folder_, "plain", "12345")))->size_bytes_max(), 5);
}

TEST_F(FileStreamTest, WhatCannotBeReadIsNamed) {
  const auto missing = FileStream::Open(folder_ + "/missing");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(missing.status().message(), HasSubstr(folder_ + "/missing cannot be opened"));
  EXPECT_EQ(FileStream::Open(folder_).status().code(), absl::StatusCode::kInvalidArgument);
  // Opening a pipe without a writer would wait for ever.
  const std::string pipe = folder_ + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(FileStream::Open(pipe).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace starring
