#include "common/safetensors.h"

#include <bit>
#include <cstring>
#include <string>
#include <vector>

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
  const auto entry = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return "{\"t\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}}";
  };
  const std::string data(8, 'x');
  ExpectDamaged(WithHeader(entry("F16", "[2]", "[0,8]"), data), "type F16");
  ExpectDamaged(WithHeader(entry("F32", "[3]", "[0,8]"), data), "needs 12 bytes");
  ExpectDamaged(WithHeader(entry("F32", "[3]", "[0,12]"), data), "the file has 8");
  ExpectDamaged(WithHeader(entry("F32", "[2]", "[8,0]"), data), "lies in bytes 8 to 0");
  ExpectDamaged(WithHeader(entry("F32", "[-2]", "[0,8]"), data), "no whole number");
  ExpectDamaged(WithHeader(entry("F32", "[1.5]", "[0,8]"), data), "no whole number");
  ExpectDamaged(WithHeader(entry("F32", "[4000000000,4000000000]", "[0,8]"), data), "absurdly large");
  ExpectDamaged(WithHeader(entry("F32", "[1]", "[0,4]"), data), "tensors end before the file does");
  ExpectDamaged(WithHeader(entry("F32", "[1]", "[4,8]"), data), "hole");
  ExpectDamaged(WithHeader(R"({"t":3})", data), "no JSON object");
  ExpectDamaged(WithHeader(R"({"t":{"shape":[2]}})", data), "dtype");
  ExpectDamaged(WithHeader(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                           R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                           data),
                "overlap");
}

}  // namespace
}  // namespace starring
