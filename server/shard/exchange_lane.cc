#include "server/shard/exchange_lane.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/wire/exchange_message.h"

namespace starring {

void ExchangeLane::OnIncoming(grpc::ByteBuffer* message) {
  // Before HELLO the peer may be a stranger: a long message is not even parsed.
  if (!id.has_value() && static_cast<int64_t>(message->Length()) > kHelloBytesMax) {
    Close(absl::InvalidArgumentError(absl::StrCat("the first message of a lane has ", message->Length(),
                                                  " bytes, HELLO has at most ", kHelloBytesMax)));
    message->Clear();
    return;
  }
  // The message refers to the bytes by itself. Clearing the buffer drops the second reference, which would hold them
  // until the next read.
  absl::StatusOr<ReceivedMessage> decoded = DecodeByteBuffer(*message);
  message->Clear();
  if (decoded.ok()) {
    events_.on_message(this, *decoded);
  } else {
    Close(decoded.status());
  }
}

void ExchangeLane::Send(Answer answer) {
  if (closing()) return;
  if (outgoing_.size() >= kLaneAnswersMax) {  // the worker asks without reading: its answers must not pile up
    Cancel();
    return;
  }
  TraceLabels labels;
  // Only parameters are traced: they are what a step waits for.
  if (track != nullptr && answer.fields.kind() == v1::ExchangeMessage::PARAMETERS) {
    labels = {.step = answer.fields.step(), .bucket = answer.fields.bucket(), .peer = answer.to.rank};
  }
  outgoing_.push_back({.answer = std::move(answer), .next_part = 0, .labels = labels});
  WriteNext();
}

bool ExchangeLane::TakePart(Outgoing* outgoing, grpc::ByteBuffer* message) {
  Answer& answer = outgoing->answer;
  const int64_t payload_bytes =
      answer.make == nullptr ? std::ssize(answer.payload) : answer.made_count * static_cast<int64_t>(sizeof(float));
  const int part = outgoing->next_part++;
  // A lane takes one part at a time: an array that is made on the way (ShardJob::FetchState) is never copied whole.
  const bool is_last = outgoing->next_part == PartCount(payload_bytes);
  const int64_t begin = PartBegin(part);
  const int64_t size = PartBytes(payload_bytes, part);
  if (part > 0) answer.fields.set_part(part);
  if (answer.make == nullptr) {
    *message = MakeByteBuffer(answer.fields, answer.payload.subspan(begin, size), answer.keeper);
  } else {
    const auto copy = std::make_shared<std::vector<float>>(size / sizeof(float));  // shared: a keeper is
    answer.make(begin / static_cast<int64_t>(sizeof(float)), *copy);
    *message = MakeByteBuffer(answer.fields, std::as_bytes(std::span<const float>(*copy)), copy);
  }
  return is_last;
}

grpc::ByteBuffer ExchangeLane::TakeOutgoing() {
  Outgoing& next = outgoing_.front();
  if (next.labels.step >= 0) write_ = {.name = "send", .begin_ns = TraceNow(), .labels = next.labels};
  grpc::ByteBuffer message;
  // An answer leaves the queue with its last part, so the parts of two answers never mix.
  if (TakePart(&next, &message)) outgoing_.pop_front();
  return message;
}

void ExchangeLane::OnWritten() {
  if (write_.name == nullptr) return;
  write_.end_ns = TraceNow();
  track->Add(std::exchange(write_, {}));
}

}  // namespace starring
