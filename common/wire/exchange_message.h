// The star's message as bytes, without copying its payload.
//
// An ExchangeMessage (proto/starring/v1/parameter_server.proto) ends with its payload. A sender writes the bytes of all
// other fields, the payload's tag and length, and then the array itself from where it is in memory. A receiver parses
// the fields out of the pieces in which the transport delivered the message and gets the payload as views of those
// pieces. Either end may as well be plain protobuf in any language.
//
// One message carries at most limits.h kMessagePayloadBytesMax of payload, so that the memory that a receiver buffers
// for a sender it does not know yet is bounded. A longer payload travels as several messages, its *parts*, one after
// the other on one stream: all repeat the fields, `part` is the number of the part, and all but the last have
// kMessagePayloadBytesMax.
//
// Thread safety: pure functions, and a type for one thread.
#ifndef STARRING_COMMON_WIRE_EXCHANGE_MESSAGE_H_
#define STARRING_COMMON_WIRE_EXCHANGE_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/watch/progress_state.h"
#include "proto/starring/v1/parameter_server.pb.h"

namespace starring {

// The side values of a snapshot travel in blocks of this many float64 (FETCH_SIDE_VALUES): the number of all, then
// values from `step` on, filled up with zeros.
inline constexpr int kSideValuesBlock = 1024;

// The version of the wire between workers and servers (proto/starring/v1/parameter_server.proto). Raise it with every
// change after which an older peer would misunderstand a newer one. Builds of different versions refuse each other.
inline constexpr int kWireVersion = 5;  // programs before the first number send 0
// The first version with proofs (request_proof.h). A request of an older one does not say its version, but for Join and
// a member's first report.
inline constexpr int kProofWireVersion = 4;

using BytePiece = std::span<const std::byte>;

// The bytes that precede `payload_bytes` bytes of payload. REQUIRES: fields.payload() is empty; payload_bytes is at
// most limits.h kMessagePayloadBytesMax.
std::string EncodeBeforePayload(const v1::ExchangeMessage& fields, int64_t payload_bytes);

struct ReceivedMessage {
  v1::ExchangeMessage fields;      // payload() is empty
  std::vector<BytePiece> payload;  // views of the pieces given to DecodeMessage, in order; none is empty
  int64_t payload_bytes = 0;
  // Keeps the bytes alive; set by the owner of the pieces. Shared: the receiver may need the payload for longer than
  // the transport.
  std::shared_ptr<const void> keeper;
};

// `pieces` put together are one message, cut anywhere. Fails with InvalidArgument if they are no legal ExchangeMessage,
// have two payloads, or are longer than limits.h allows, with or without their payload.
absl::StatusOr<ReceivedMessage> DecodeMessage(std::span<const BytePiece> pieces);

// Copies `pieces` to `out`. REQUIRES: they have out.size() bytes altogether.
void CopyPieces(std::span<const BytePiece> pieces, std::span<std::byte> out);

// At least 1: a message without payload is one part.
int PartCount(int64_t payload_bytes);
// Where part `part` begins in the payload, and how long it is. REQUIRES: 0 <= part < PartCount(payload_bytes).
int64_t PartBegin(int part);
int64_t PartBytes(int64_t payload_bytes, int part);

// Puts the parts of one stream's messages together, without copying them. Holds at most one payload.
class PartAssembler {
 public:
  // Takes the next message of the stream, whose whole payload must have `payload_bytes`, more than one message may
  // carry. Returns the whole message when this is its last part. A message that begins before the previous one is
  // complete replaces the previous one, whose sender has had its answer already.
  // InvalidArgument, naming both numbers, if the part is not the next one or has another length.
  absl::StatusOr<std::optional<ReceivedMessage>> Add(const ReceivedMessage& part, int64_t payload_bytes);

  // The payload of an incomplete message that is held.
  int64_t held_bytes() const { return message_.payload_bytes; }

  // Forgets what is held.
  void Clear();

 private:
  ReceivedMessage message_;                                            // without a keeper until it is whole
  std::shared_ptr<std::vector<std::shared_ptr<const void>>> keepers_;  // of its parts; shared with the whole message
  int next_part_ = 0;
};

// A worker's progress as a message. A received value that makes no sense becomes "unknown".
void SetProgress(const WorkState& state, v1::Progress* progress);
WorkState GetProgress(const v1::Progress& progress);

}  // namespace starring

#endif  // STARRING_COMMON_WIRE_EXCHANGE_MESSAGE_H_
