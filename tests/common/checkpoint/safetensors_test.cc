#include "common/checkpoint/safetensors.h"

#include <bit>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string WithHeader(const std::string& json, const std::string& data) {
  std::string file(8, '\0');
  const uint64_t length = json.size();
  std::memcpy(file.data(), &length, 8);
  return file + json + data;
}

void ExpectDamaged(const std::string& file, const std::string& why) {
  const auto parsed = ParseSafetensors(file);
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(why));
}

TEST(SafetensorsTest, WhatIsWrittenIsRead) {
  const std::vector<float> weight = {1, 2, 3, 4, 5, 6};
  const int64_t count = 1234567890123;
  const std::string file = SerializeSafetensors(
      {{"fc.weight", {.shape = {2, 3}, .bytes = std::as_bytes(std::span(weight))}},
       {"count", {.type = TensorType::kInt64, .shape = {}, .bytes = std::as_bytes(std::span(&count, 1))}},
       {"empty", {.shape = {0, 4}, .bytes = {}}}});
  const auto tensors = ParseSafetensors(file);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  ASSERT_EQ(tensors->size(), 3);
  EXPECT_THAT(tensors->at("fc.weight").shape, ElementsAre(2, 3));
  EXPECT_EQ(std::memcmp(tensors->at("fc.weight").bytes.data(), weight.data(), 24), 0);
  EXPECT_EQ(tensors->at("count").type, TensorType::kInt64);
  EXPECT_TRUE(tensors->at("count").shape.empty());
  EXPECT_EQ(std::memcmp(tensors->at("count").bytes.data(), &count, 8), 0);
}

TEST(SafetensorsTest, HeaderIsTheSameEveryTimeAndHasPlainNumbers) {
  const std::vector<float> values(3);
  const std::map<std::string, TensorView> tensors = {
      {"b\"\\", {.shape = {3, 1}, .bytes = std::as_bytes(std::span(values))}},
      {"a", {.shape = {}, .bytes = std::as_bytes(std::span(values).first(1))}}};
  const std::string file = SerializeSafetensors(tensors);
  const std::string header = R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
                             R"("b\"\\":{"dtype":"F32","shape":[3,1],"data_offsets":[4,16]}})";
  EXPECT_EQ(file.substr(8, header.size()), header);
  EXPECT_EQ((file.size() - 16) % 64, 0) << "data begins on a 64-byte boundary";
  EXPECT_EQ(SerializeSafetensors(tensors), file);
  ASSERT_TRUE(ParseSafetensors(file).ok());
}

TEST(SafetensorsTest, EveryTruncationAndFlipIsMetWithoutACrash) {
  const std::vector<float> values(5);
  const std::string file = SerializeSafetensors({{"a", {.shape = {5}, .bytes = std::as_bytes(std::span(values))}}});
  for (size_t length = 0; length < file.size(); ++length) {
    EXPECT_FALSE(ParseSafetensors(absl::string_view(file).substr(0, length)).ok()) << length;
  }
  for (size_t i = 0; i < file.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = file;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      const auto parsed = ParseSafetensors(damaged);
      if (!parsed.ok()) continue;
      for (const auto& [name, tensor] : *parsed) EXPECT_LE(tensor.bytes.size(), sizeof(float) * 5);
    }
  }
}

TEST(SafetensorsTest, TakesMetadataAndForeignKeyOrder) {
  const auto tensors = ParseSafetensors(
      WithHeader(R"({"__metadata__":{"format":"pt"},"b":{"shape":[1],"data_offsets":[4,8],"dtype":"F32"},)"
                 R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                 std::string(8, 'x')));
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  EXPECT_EQ(tensors->size(), 2);
}

TEST(SafetensorsTest, RefusesEveryLie) {
  ExpectDamaged("1234", "expected at least 8 bytes, found 4");
  ExpectDamaged(std::string(8, '\xff'), "the header claims");
  ExpectDamaged(WithHeader("{", ""), "no JSON object");
  ExpectDamaged(WithHeader("", ""), "no JSON object");
  ExpectDamaged(WithHeader("[]", ""), "no JSON object");
  ExpectDamaged(WithHeader(std::string(1 << 16, '['), ""), "no JSON object");
  ExpectDamaged(WithHeader("{\"t\":" + std::string(1 << 16, '['), ""), "no JSON object");
  ExpectDamaged(WithHeader("{\"\xff\xfe\":{}}", ""), "safetensors: ");
  const auto entry = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return "{\"t\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}}";
  };
  const std::string data(8, 'x');
  ExpectDamaged(WithHeader(entry("F16", "[2]", "[0,8]"), data), "type F16");
  ExpectDamaged(WithHeader(entry("F32", "[3]", "[0,8]"), data), "needs 12 bytes");
  ExpectDamaged(WithHeader(entry("F32", "[3]", "[0,12]"), data), "the file has 8");
  ExpectDamaged(WithHeader(entry("F32", "[2]", "[8,0]"), data), "is in bytes 8 to 0");
  ExpectDamaged(WithHeader(entry("F32", "[-2]", "[0,8]"), data), "no whole number");
  ExpectDamaged(WithHeader(entry("F32", "[1.5]", "[0,8]"), data), "no whole number");
  ExpectDamaged(WithHeader(entry("F32", "[4000000000,4000000000]", "[0,8]"), data), "absurdly large");
  EXPECT_TRUE(ParseSafetensors(WithHeader(entry("F32", "[1,1,1,1,1,1,1,2]", "[0,8]"), data)).ok());
  ExpectDamaged(WithHeader(entry("F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]"), data), "has 9 axes, at most 8 are allowed");
  ExpectDamaged(WithHeader(entry("F32", "[1]", "[0,4]"), data), "tensors end before the file does");
  ExpectDamaged(WithHeader(entry("F32", "[1]", "[4,8]"), data), "hole");
  ExpectDamaged(WithHeader(R"({"t":3})", data), "no JSON object");
  ExpectDamaged(WithHeader(R"({"t":{"shape":[2]}})", data), "dtype");
  ExpectDamaged(WithHeader(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                           R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                           data),
                "overlap");
}

TEST(SafetensorsTest, AHeaderHasALimitHoweverLongTheFileIs) {
  std::string file(kSafetensorsLengthBytes + kSafetensorsHeaderBytesMax + 1, ' ');
  const uint64_t claimed = kSafetensorsHeaderBytesMax + 1;
  std::memcpy(file.data(), &claimed, sizeof claimed);
  ExpectDamaged(file, absl::StrCat("the header claims ", claimed, " bytes, at most ", claimed - 1));
}

}  // namespace
}  // namespace starring
