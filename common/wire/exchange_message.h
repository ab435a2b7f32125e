// The star's message as bytes, without copying its payload.
//
// An ExchangeMessage (proto/starring/v1/parameter_server.proto) ends with its payload, so a sender writes the bytes of
// all other fields, the payload's tag and length, and then the array itself, from wherever it lies. A receiver parses
// the fields out of the pieces in which the transport delivered the message and gets the payload as views of those
// pieces. Both ends may as well be plain protobuf in any language.
//
// Thread safety: pure functions.
#ifndef STARRING_COMMON_WIRE_EXCHANGE_MESSAGE_H_
#define STARRING_COMMON_WIRE_EXCHANGE_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/starring/v1/parameter_server.pb.h"

namespace starring {

using BytePiece = std::span<const std::byte>;

// What goes on the wire before `payload_bytes` bytes of payload. REQUIRES: fields.payload() is empty; payload_bytes is
// at most limits.h kMessagePayloadBytesMax (longer ones: message_parts.h).
std::string EncodeBeforePayload(const v1::ExchangeMessage& fields, int64_t payload_bytes);

struct ReceivedMessage {
  v1::ExchangeMessage fields;      // payload() is empty
  std::vector<BytePiece> payload;  // views of the pieces given to DecodeMessage, in order; none is empty
  int64_t payload_bytes = 0;
  // Keeps the bytes alive; set by whoever owns the pieces. Shared: the parameter shard may need the payload for longer
  // than the transport.
  std::shared_ptr<const void> keeper;
};

// `pieces` put together are one message, cut anywhere. Fails with InvalidArgument if they are no legal ExchangeMessage,
// have two payloads, or are longer than limits.h allows, with or without their payload.
absl::StatusOr<ReceivedMessage> DecodeMessage(std::span<const BytePiece> pieces);

// Copies `pieces` to `out`. REQUIRES: they have out.size() bytes altogether.
void CopyPieces(std::span<const BytePiece> pieces, std::span<std::byte> out);

}  // namespace starring

#endif  // STARRING_COMMON_WIRE_EXCHANGE_MESSAGE_H_
