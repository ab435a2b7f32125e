#include "server/exchange_lane.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "common/wire/exchange_message.h"

namespace starring {

void ExchangeLane::Accept(RawParameterServerService* service, grpc::ServerCompletionQueue* queue) {
  service->RequestExchange(&context_, &stream_, queue, queue, &accept_tag_);
}

void ExchangeLane::OnAccept(bool ok) {
  if (!ok) {  // the server is shutting down
    events_.on_gone(this, End::kBroken);
    return;
  }
  // From here on the stream counts against the time that a stranger has for HELLO.
  accepted_at_ = std::chrono::steady_clock::now();
  events_.on_accepted(this);
  reading_ = true;
  stream_.Read(&incoming_, &read_tag_);
}

void ExchangeLane::OnRead(bool ok) {
  reading_ = false;
  if (!ok) {  // the worker has closed its side, or the connection broke
    Close(absl::OkStatus());
    GoneIfDone();
    return;
  }
  // Before HELLO the peer may be a stranger: a long message is not even parsed.
  if (!closing_ && !id.has_value() && static_cast<int64_t>(incoming_.Length()) > kHelloBytesMax) {
    Close(absl::InvalidArgumentError(absl::StrCat("the first message of a lane has ", incoming_.Length(),
                                                  " bytes, HELLO has at most ", kHelloBytesMax)));
    incoming_.Clear();
  } else if (!closing_) {
    // The message refers to the bytes by itself. Clearing `incoming_` drops the second reference, which would hold
    // them until the next read.
    absl::StatusOr<ReceivedMessage> message = DecodeByteBuffer(incoming_);
    incoming_.Clear();
    if (message.ok()) {
      events_.on_message(this, *message);
    } else {
      Close(message.status());
    }
  }
  // The lane reads while it is closing, too: only the end of a read shows that the worker is gone.
  if (finishing_) return;
  reading_ = true;
  stream_.Read(&incoming_, &read_tag_);
}

void ExchangeLane::Send(Answer answer) {
  if (closing_) return;
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
  // If another write is under way, OnWrite goes on with this answer.
  if (!writing_) Write();
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

void ExchangeLane::Write() {
  writing_ = true;
  // gRPC allows one write at a time; the next one begins in OnWrite.
  Outgoing& next = outgoing_.front();
  if (next.labels.step >= 0) write_ = {.name = "send", .begin_ns = TraceNow(), .labels = next.labels};
  grpc::ByteBuffer message;
  if (TakePart(&next, &message)) outgoing_.pop_front();
  stream_.Write(message, &write_tag_);
}

void ExchangeLane::OnWrite(bool ok) {
  writing_ = false;
  if (write_.name != nullptr) {
    write_.end_ns = TraceNow();
    track->Add(std::exchange(write_, {}));
  }
  if (!ok) {
    // What is still queued cannot be delivered on this stream. The worker asks again on its next one.
    end_ = End::kBroken;
    outgoing_.clear();
    Close(absl::UnavailableError("the connection broke"));
    return;
  }
  if (!outgoing_.empty()) {
    Write();
  } else {
    FinishIfDrained();
  }
}

void ExchangeLane::Close(const absl::Status& status) {
  // The first status counts: Close is also called by the read that notices the end.
  if (!closing_) {
    closing_ = true;
    close_status_ = status;
  }
  FinishIfDrained();
}

void ExchangeLane::Cancel() {
  // An answer that was dropped must not pass for one that was read.
  end_ = End::kBroken;
  outgoing_.clear();
  Close(absl::CancelledError("replaced or refused"));
  // Close alone would wait for a write that the peer may never read.
  context_.TryCancel();
}

void ExchangeLane::FinishIfDrained() {
  // gRPC allows Finish only when no write is pending.
  if (!closing_ || writing_ || !outgoing_.empty() || finishing_) return;
  finishing_ = true;
  stream_.Finish(ToGrpcStatus(close_status_), &finish_tag_);
}

void ExchangeLane::OnFinish(bool ok) {
  finished_ = true;
  if (!ok) end_ = End::kBroken;
  GoneIfDone();
}

// gRPC returns a read that is pending when the stream ends after Finish. Until then its tag points into this object.
void ExchangeLane::GoneIfDone() {
  if (finished_ && !reading_) events_.on_gone(this, end_);
}

}  // namespace starring
