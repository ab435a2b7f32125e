#include <google/protobuf/struct.pb.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/json_util.h>

#include <string>

#include "gtest/gtest.h"

namespace starring {
namespace {

// Uses a map, whose layout differs between headers and library if a sanitizer's macro changes only one of them.
TEST(Protobuf, MapsGoThroughJson) {
  google::protobuf::Struct message;
  (*message.mutable_fields())["answer"].set_number_value(42);
  (*message.mutable_fields())["name"].set_string_value("star");
  std::string json;
  ASSERT_TRUE(google::protobuf::util::MessageToJsonString(message, &json).ok());
  google::protobuf::Struct read;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(json, &read).ok());
  EXPECT_EQ(read.fields().at("answer").number_value(), 42);
  EXPECT_EQ(read.fields().size(), 2u);
}

TEST(Protobuf, ReadsText) {
  google::protobuf::Value value;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString("number_value: 0.5", &value));
  EXPECT_EQ(value.number_value(), 0.5);
}

}  // namespace
}  // namespace starring
