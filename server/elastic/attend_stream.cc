#include "server/elastic/attend_stream.h"

#include "common/limits.h"

namespace starring {

void AttendStream::OnAccept(bool ok) {
  if (!ok) {  // the server is shutting down
    events_.on_gone(this);
    return;
  }
  accepted_at_ = std::chrono::steady_clock::now();
  events_.on_accepted(this);
  reading_ = true;
  stream_.Read(&incoming_, &read_tag_);
}

void AttendStream::OnRead(bool ok) {
  reading_ = false;
  if (!ok) {  // the member has ended, or the connection broke
    Close(absl::OkStatus());
    GoneIfDone();
    return;
  }
  if (!closing_) events_.on_report(this, incoming_);
  // It reads while it is closing, too: only the end of a read shows that the member is gone.
  if (finishing_) return;
  reading_ = true;
  stream_.Read(&incoming_, &read_tag_);
}

void AttendStream::Send(const v1::MemberOrder& order) {
  if (closing_) return;
  // A member that does not read is silent soon, and is given up: what it was told before does not matter then.
  if (std::ssize(outgoing_) >= kOrdersWaitingMax) outgoing_.pop_front();
  outgoing_.push_back(order);
  if (!writing_) Write();
}

void AttendStream::Write() {
  writing_ = true;
  const v1::MemberOrder order = std::move(outgoing_.front());
  outgoing_.pop_front();
  stream_.Write(order, &write_tag_);
}

void AttendStream::OnWrite(bool ok) {
  writing_ = false;
  if (!ok) {
    outgoing_.clear();
    Close(absl::UnavailableError("the connection broke"));
  } else if (!outgoing_.empty()) {
    Write();
  } else {
    FinishIfDrained();
  }
}

void AttendStream::Close(const absl::Status& status) {
  // The first status counts: Close is also called by the read that notices the end.
  if (!closing_) close_status_ = status;
  closing_ = true;
  FinishIfDrained();
}

void AttendStream::Cancel() {
  outgoing_.clear();
  Close(absl::CancelledError("given up"));
  // Close alone would wait for a write that the member may never read.
  context_.TryCancel();
}

void AttendStream::FinishIfDrained() {
  // gRPC allows Finish only when no write is pending.
  if (!closing_ || writing_ || !outgoing_.empty() || finishing_) return;
  finishing_ = true;
  stream_.Finish(ToGrpcStatus(close_status_), &finish_tag_);
}

// gRPC returns a read that is pending when the stream ends after Finish. Until then its tag points into this object.
void AttendStream::GoneIfDone() {
  if (finished_ && !reading_) events_.on_gone(this);
}

}  // namespace starring
