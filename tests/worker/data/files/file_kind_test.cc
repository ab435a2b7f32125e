#include "worker/data/files/file_kind.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::HasSubstr;

absl::Status Look(const std::string& content) {
  return RefuseOtherKind("f", std::span(reinterpret_cast<const uint8_t*>(content.data()), content.size()));
}

TEST(FileKindTest, SaysWhatAFileIs) {
  const std::vector<std::pair<std::string, std::string>> kinds = {
      {"<!DOCTYPE html><html>", "f is a web page: the download failed"},
      {"\r\n  <html lang=en>", "f is a web page"},
      {"<?xml version=\"1.0\"?><Error>", "f is a web page"},
      {std::string("PK\x03\x04\x14\0", 6), "f is a zip archive: unpack it"},
      {"\x1f\x8b\x08 twice", "f is gzipped twice: gunzip it once"},
      {std::string("\xfd\x37zXZ\0\0", 7), "f is compressed by xz"},
      {"\x89PNG\r\n\x1a\n", "f is a PNG image"},
      {"\xff\xd8\xff\xe0", "f is a JPEG image"},
      {std::string("\x93NUMPY\x01\0", 8), "f is an array of NumPy"},
      {"version https://git-lfs.github.com/spec/v1\noid", "f is a pointer of Git LFS"}};
  for (const auto& [content, words] : kinds) {
    EXPECT_EQ(Look(content).code(), absl::StatusCode::kDataLoss) << words;
    EXPECT_THAT(std::string(Look(content).message()), HasSubstr(words));
  }
}

TEST(FileKindTest, DataAndUnknownFilesAreLeftToTheirReaders) {
  for (const std::string& content : {std::string(), std::string("<"), std::string("\0\0\x08\x03\0\0\0\x05", 8),
                                     std::string("\x09<html>"), std::string("garbage"), std::string("   ")}) {
    EXPECT_TRUE(Look(content).ok()) << content;
  }
}

}  // namespace
}  // namespace starring
