#include "common/wire/exchange_message.h"

#include <algorithm>
#include <random>

#include "absl/strings/match.h"
#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::HasSubstr;
using v1::ExchangeMessage;

BytePiece Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string Join(std::span<const BytePiece> pieces) {
  std::string text;
  for (const BytePiece piece : pieces) text.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  return text;
}

absl::StatusOr<ReceivedMessage> Decode(const std::string& text) {
  const BytePiece piece = Bytes(text);
  return DecodeMessage({&piece, 1});
}

ExchangeMessage Gradient() {
  ExchangeMessage fields;
  fields.set_kind(ExchangeMessage::GRADIENT);
  fields.set_step(1'234'567'890'123);
  fields.set_bucket(300);
  fields.set_rank(3);
  fields.set_job_id(0xfedcba9876543210u);
  return fields;
}

std::string Payload(size_t size) {
  std::string payload(size, '\0');
  for (size_t i = 0; i < size; ++i) payload[i] = static_cast<char>(i * 31 + 7);
  return payload;
}

TEST(ExchangeMessageTest, EncodesAsProtobufDoes) {
  for (const size_t size : {0, 1, 127, 128, 4099, 70'000}) {  // lengths of one, two and three bytes
    ExchangeMessage whole = Gradient();
    whole.set_payload(Payload(size));
    EXPECT_EQ(EncodeBeforePayload(Gradient(), static_cast<int64_t>(size)) + Payload(size), whole.SerializeAsString())
        << size;
  }
}

TEST(ExchangeMessageTest, DecodesWhatProtobufEncodes) {
  ExchangeMessage whole = Gradient();
  whole.set_text("some text");
  whole.set_payload(Payload(1000));
  const std::string bytes = whole.SerializeAsString();
  const auto message = Decode(bytes);
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->payload_bytes, 1000);
  EXPECT_EQ(Join(message->payload), Payload(1000));
  whole.clear_payload();
  EXPECT_EQ(message->fields.SerializeAsString(), whole.SerializeAsString());
}

TEST(ExchangeMessageTest, RefersToThePiecesThemselves) {
  ExchangeMessage whole = Gradient();
  whole.set_payload(Payload(100));
  const std::string bytes = whole.SerializeAsString();
  const auto message = Decode(bytes);
  ASSERT_TRUE(message.ok());
  ASSERT_EQ(message->payload.size(), 1u);
  EXPECT_EQ(reinterpret_cast<const char*>(message->payload[0].data()), bytes.data() + bytes.size() - 100);
}

// Every cut in two, and every cut in three of a short message.
TEST(ExchangeMessageTest, DecodesPiecesCutAnywhere) {
  ExchangeMessage whole = Gradient();
  whole.set_payload(Payload(40));
  const std::string bytes = whole.SerializeAsString();
  for (size_t i = 0; i <= bytes.size(); ++i) {
    for (size_t j = i; j <= bytes.size(); ++j) {
      const std::vector<BytePiece> pieces = {Bytes(bytes).subspan(0, i), Bytes(bytes).subspan(i, j - i),
                                             Bytes(bytes).subspan(j)};
      const auto message = DecodeMessage(pieces);
      ASSERT_TRUE(message.ok()) << i << " " << j << " " << message.status();
      ASSERT_EQ(Join(message->payload), Payload(40)) << i << " " << j;
      ASSERT_EQ(message->fields.step(), whole.step());
      for (const BytePiece piece : message->payload) ASSERT_FALSE(piece.empty());
    }
  }
}

TEST(ExchangeMessageTest, DecodesOneByteAPiece) {
  ExchangeMessage whole = Gradient();
  whole.set_payload(Payload(300));
  const std::string bytes = whole.SerializeAsString();
  std::vector<BytePiece> pieces;
  for (size_t i = 0; i < bytes.size(); ++i) pieces.push_back(Bytes(bytes).subspan(i, 1));
  const auto message = DecodeMessage(pieces);
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->payload.size(), 300u);
  EXPECT_EQ(Join(message->payload), Payload(300));
}

// Legal protobuf, though no encoder that we know writes it so.
TEST(ExchangeMessageTest, DecodesFieldsBehindThePayload) {
  ExchangeMessage first;
  first.set_step(5);
  ExchangeMessage second;
  second.set_bucket(6);
  second.set_payload("three");
  ExchangeMessage third;
  third.set_rank(7);
  const std::string bytes = first.SerializeAsString() + second.SerializeAsString() + third.SerializeAsString();
  const auto message = Decode(bytes);
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->fields.step(), 5);
  EXPECT_EQ(message->fields.bucket(), 6);
  EXPECT_EQ(message->fields.rank(), 7);
  EXPECT_EQ(Join(message->payload), "three");
}

// Protobuf takes the last one. Each costs a search through all pieces, and two bytes on the wire.
TEST(ExchangeMessageTest, RefusesASecondPayload) {
  ExchangeMessage whole;
  whole.set_payload("one");
  const std::string empty = {'\x7a', '\x00'};  // an empty payload, which no encoder writes
  for (const std::string& bytes : {whole.SerializeAsString() + whole.SerializeAsString(), empty + empty}) {
    const auto message = Decode(bytes);
    ASSERT_FALSE(message.ok());
    EXPECT_THAT(std::string(message.status().message()), HasSubstr("second payload"));
  }
  EXPECT_TRUE(Decode(empty).ok());
}

TEST(ExchangeMessageTest, RefusesAMessageOverTheLimitBeforeItLooksInside) {
  const std::string chunk(1 << 16, '\xff');  // no legal message
  // At the limit the content is refused; with one byte more the length is.
  std::vector<BytePiece> pieces(kMessageBytesMax / std::ssize(chunk), Bytes(chunk));
  EXPECT_THAT(std::string(DecodeMessage(pieces).status().message()), HasSubstr("malformed tag"));
  pieces.push_back(Bytes(chunk).first(1));
  EXPECT_THAT(std::string(DecodeMessage(pieces).status().message()), HasSubstr("67174401"));
}

TEST(ExchangeMessageDeathTest, EncodesNoPayloadOverTheLimit) {
  EXPECT_FALSE(EncodeBeforePayload(Gradient(), kMessagePayloadBytesMax).empty());
  EXPECT_DEATH(EncodeBeforePayload(Gradient(), kMessagePayloadBytesMax + 1), "67108865");
}

TEST(ExchangeMessageTest, SkipsFieldsOfALaterVersion) {
  // Field 100: varint 5. Field 101: "ab".
  const std::string unknown = {'\xa0', '\x06', '\x05', '\xaa', '\x06', '\x02', 'a', 'b'};
  ExchangeMessage whole = Gradient();
  whole.set_payload("payload");
  const std::string bytes = unknown + whole.SerializeAsString();  // outlives the message, which refers to it
  const auto message = Decode(bytes);
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->fields.bucket(), 300);
  EXPECT_EQ(Join(message->payload), "payload");
}

TEST(ExchangeMessageTest, DecodesNothing) {
  const auto message = DecodeMessage({});
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->fields.kind(), ExchangeMessage::UNKNOWN);
  EXPECT_EQ(message->payload_bytes, 0);
}

TEST(ExchangeMessageTest, RefusesEveryTruncation) {
  ExchangeMessage whole;
  whole.set_text("text");
  whole.set_payload(Payload(200));
  const std::string bytes = whole.SerializeAsString();
  for (size_t size = 1; size < bytes.size(); ++size) {
    if (size == 6) continue;  // a whole message: the text and no payload
    EXPECT_FALSE(Decode(bytes.substr(0, size)).ok()) << size;
  }
}

TEST(ExchangeMessageTest, RefusesFieldsLongerThanTheLimit) {
  ExchangeMessage fields;
  fields.set_text(std::string(100'000, 'x'));
  const auto message = Decode(fields.SerializeAsString());
  ASSERT_FALSE(message.ok());
  EXPECT_THAT(std::string(message.status().message()), HasSubstr("65536"));
}

// Over random damage: agrees with protobuf's own parser on which bytes are a message.
TEST(ExchangeMessageTest, AcceptsWhatProtobufAccepts) {
  const unsigned seed = 20261121;
  std::mt19937 random(seed);
  int accepted = 0;
  for (int i = 0; i < 20'000; ++i) {
    ExchangeMessage whole = Gradient();
    whole.set_text("abc");
    whole.set_payload(Payload(random() % 20));
    std::string bytes = whole.SerializeAsString();
    for (unsigned damage = random() % 3; damage > 0; --damage)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    ExchangeMessage expected;
    const bool legal = expected.ParseFromString(bytes);
    const auto message = Decode(bytes);
    if (legal && !message.ok() && absl::StrContains(message.status().message(), "second payload")) continue;
    ASSERT_EQ(message.ok(), legal) << "seed " << seed << " message " << i << ": " << message.status();
    if (!legal) continue;
    ++accepted;
    ExchangeMessage got = message->fields;
    got.set_payload(Join(message->payload));
    got.DiscardUnknownFields();
    expected.DiscardUnknownFields();
    ASSERT_EQ(got.SerializeAsString(), expected.SerializeAsString()) << "seed " << seed << " message " << i;
  }
  EXPECT_GT(accepted, 5'000);
}

TEST(CopyPiecesTest, PutsPiecesTogether) {
  const std::string a = "ab", b = "", c = "cde";
  std::string out(5, ' ');
  const std::vector<BytePiece> pieces = {Bytes(a), Bytes(b), Bytes(c)};
  CopyPieces(pieces, std::as_writable_bytes(std::span(out)));
  EXPECT_EQ(out, "abcde");
}

TEST(CopyPiecesDeathTest, ChecksTheLength) {
  const std::string a = "ab";
  std::string out(3, ' ');
  const BytePiece piece = Bytes(a);
  EXPECT_DEATH(CopyPieces({&piece, 1}, std::as_writable_bytes(std::span(out))), "CHECK");
}

}  // namespace
}  // namespace starring
