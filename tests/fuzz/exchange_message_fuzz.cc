// One ExchangeMessage, cut into pieces at any place. The pieces must not matter, and protobuf must read the same
// fields.
#include <algorithm>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/wire/exchange_message.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/reached.h"

using starring::BytePiece;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  starring::SilenceProtobuf();
  starring::FuzzInput input(data, size);
  const std::string cuts = input.Bytes(4);
  const std::string text = input.Rest();
  const BytePiece whole = std::as_bytes(std::span(text));
  const auto message = starring::DecodeMessage({&whole, 1});

  // Copies, so that a sanitizer sees a read beyond the end of a piece.
  std::vector<std::vector<std::byte>> kept;
  std::vector<BytePiece> pieces;
  size_t position = 0;
  for (const char cut : cuts) {
    const size_t length = std::min<size_t>(static_cast<unsigned char>(cut), whole.size() - position);
    const BytePiece piece = whole.subspan(position, length);
    kept.emplace_back(piece.begin(), piece.end());
    position += length;
  }
  kept.emplace_back(whole.begin() + static_cast<ptrdiff_t>(position), whole.end());
  for (const std::vector<std::byte>& piece : kept) pieces.emplace_back(piece);
  const auto cut_message = starring::DecodeMessage(pieces);
  CHECK_EQ(message.ok(), cut_message.ok());
  starring::Reached(message.ok() ? "decoded " + starring::v1::ExchangeMessage::Kind_Name(message->fields.kind())
                                 : message.status().ToString());
  if (!message.ok()) return 0;

  const auto payload_of = [](const starring::ReceivedMessage& received) {
    std::string payload(received.payload_bytes, '\0');
    starring::CopyPieces(received.payload, std::as_writable_bytes(std::span(payload)));
    return payload;
  };
  const std::string payload = payload_of(*message);
  CHECK(payload == payload_of(*cut_message));
  CHECK(message->fields.payload().empty());
  starring::v1::ExchangeMessage parsed;
  CHECK(parsed.ParseFromString(text));
  CHECK(parsed.payload() == payload);
  // An encoded message must be decoded to the same fields.
  const std::string sent = starring::EncodeBeforePayload(message->fields, std::ssize(payload)) + payload;
  const BytePiece sent_bytes = std::as_bytes(std::span(sent));
  const auto again = starring::DecodeMessage({&sent_bytes, 1});
  CHECK(again.ok()) << again.status().ToString();
  CHECK(payload_of(*again) == payload);
  return 0;
}
