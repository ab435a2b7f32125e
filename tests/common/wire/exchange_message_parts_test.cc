#include "common/base/limits.h"
#include "common/wire/exchange_message.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kPart = kMessagePayloadBytesMax;

TEST(MessagePartsTest, CutsAtTheLimit) {
  EXPECT_EQ(PartCount(0), 1);
  EXPECT_EQ(PartCount(kPart), 1);
  EXPECT_EQ(PartCount(kPart + 1), 2);
  EXPECT_EQ(PartCount(16 * kPart), 16);
  EXPECT_EQ(PartBytes(kPart + 1, 0), kPart);
  EXPECT_EQ(PartBytes(kPart + 1, 1), 1);
  EXPECT_EQ(PartBytes(0, 0), 0);
  EXPECT_EQ(PartBegin(3), 3 * kPart);
}

// Messages whose payload is memory of one array, of which no byte is ever looked at.
class Sender {
 public:
  ReceivedMessage Part(int part, int64_t bytes, int bucket = 0) {
    ReceivedMessage message;
    message.fields.set_kind(v1::ExchangeMessage::GRADIENT);
    message.fields.set_bucket(bucket);
    message.fields.set_part(part);
    message.payload = {{bytes_.get() + part * kPart, static_cast<size_t>(bytes)}};
    message.payload_bytes = bytes;
    message.keeper = keeper;
    return message;
  }
  std::shared_ptr<const void> keeper = std::make_shared<int>();  // shared: the test looks at who holds it

 private:
  const std::unique_ptr<std::byte[]> bytes_{new std::byte[3 * kPart]};
};

TEST(MessagePartsTest, PutsPartsTogetherWithoutACopy) {
  Sender sender;
  PartAssembler assembler;
  const int64_t total = 2 * kPart + 12;
  for (int part = 0; part < 2; ++part) {
    const auto incomplete = assembler.Add(sender.Part(part, kPart), total);
    ASSERT_TRUE(incomplete.ok()) << incomplete.status();
    EXPECT_FALSE(incomplete->has_value());
    EXPECT_EQ(assembler.held_bytes(), (part + 1) * kPart);
  }
  auto whole = assembler.Add(sender.Part(2, 12), total);
  ASSERT_TRUE(whole.ok() && whole->has_value()) << whole.status();
  EXPECT_EQ((*whole)->payload_bytes, total);
  EXPECT_EQ((*whole)->fields.part(), 0);
  const std::byte* at = sender.Part(0, 1).payload[0].data();
  for (const BytePiece piece : (*whole)->payload) {
    EXPECT_EQ(piece.data(), at);
    at += piece.size();
  }
  EXPECT_EQ(assembler.held_bytes(), 0);
  EXPECT_EQ(sender.keeper.use_count(), 4);  // one for each part
  whole->reset();
  EXPECT_EQ(sender.keeper.use_count(), 1);
}

TEST(MessagePartsTest, AMessageThatBeginsAnewReplacesAnIncompleteOne) {
  Sender sender;
  PartAssembler assembler;
  ASSERT_TRUE(assembler.Add(sender.Part(0, kPart, 1), 3 * kPart).ok());
  ASSERT_TRUE(assembler.Add(sender.Part(0, kPart, 2), 2 * kPart).ok());
  EXPECT_EQ(assembler.held_bytes(), kPart);
  EXPECT_EQ(sender.keeper.use_count(), 2);
  const auto whole = assembler.Add(sender.Part(1, kPart, 2), 2 * kPart);
  ASSERT_TRUE(whole.ok() && whole->has_value());
  EXPECT_EQ((*whole)->fields.bucket(), 2);
}

TEST(MessagePartsTest, RefusesPartsOutOfOrderOrOfAnotherLength) {
  Sender sender;
  const auto refusal = [&](const std::vector<ReceivedMessage>& parts) {
    PartAssembler assembler;
    absl::Status last;
    for (const ReceivedMessage& part : parts) last = assembler.Add(part, 2 * kPart + 12).status();
    EXPECT_EQ(last.code(), absl::StatusCode::kInvalidArgument);
    return std::string(last.message());
  };
  EXPECT_THAT(refusal({sender.Part(1, kPart)}), HasSubstr("expected part 0 of 3"));
  EXPECT_THAT(refusal({sender.Part(0, kPart), sender.Part(2, 12)}), HasSubstr("expected part 1 of 3"));
  EXPECT_THAT(refusal({sender.Part(0, kPart), sender.Part(1, kPart, 7)}), HasSubstr("part 1"));
  EXPECT_THAT(refusal({sender.Part(0, kPart - 1)}), HasSubstr("expected 67108864"));
  EXPECT_THAT(refusal({sender.Part(0, kPart), sender.Part(1, 12)}), HasSubstr("expected 67108864"));
  ReceivedMessage negative = sender.Part(0, kPart);
  negative.fields.set_part(-1);
  EXPECT_THAT(refusal({negative}), HasSubstr("part -1"));
}

}  // namespace
}  // namespace starring
