// Long payloads. One message carries at most limits.h kMessagePayloadBytesMax of payload, so that what a receiver
// buffers for a sender it does not know yet is bounded. A longer payload travels as several messages, its *parts*, one
// after the other on one stream: all repeat the fields, `part` is the number of the part, and all but the last have
// kMessagePayloadBytesMax.
//
// Thread safety: pure functions, and a type for one thread.
#ifndef STARRING_COMMON_WIRE_MESSAGE_PARTS_H_
#define STARRING_COMMON_WIRE_MESSAGE_PARTS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/wire/exchange_message.h"

namespace starring {

// At least 1: a message without payload is one part.
int PartCount(int64_t payload_bytes);
// Where part `part` begins in the payload, and how long it is. REQUIRES: 0 <= part < PartCount(payload_bytes).
int64_t PartBegin(int part);
int64_t PartBytes(int64_t payload_bytes, int part);

// Puts the parts of one stream's messages together, without copying them. It holds what one payload has, at most.
class PartAssembler {
 public:
  // Takes the next message of the stream, whose whole payload must have `payload_bytes`, more than one message may
  // carry. Returns the whole message when this is its last part. A message that begins before the one before is
  // complete replaces it: the sender had its answer already.
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

}  // namespace starring

#endif  // STARRING_COMMON_WIRE_MESSAGE_PARTS_H_
