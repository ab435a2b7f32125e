// A stream of messages in both directions, at the server's end: the life that ExchangeLane and AttendStream share.
//
// Life: a derived class asks gRPC for the next stream with accept_tag(); OnAccepted when a client opened it; OnIncoming
// for each message; OnGone when the stream is over and has no tag left in the completion queue. Only then may it be
// destroyed.
//
// Thread safety: one thread, the one that polls the completion queue.
#ifndef STARRING_SERVER_DOOR_SERVER_STREAM_H_
#define STARRING_SERVER_DOOR_SERVER_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/wire/grpc_transport.h"

namespace starring {

template <typename Incoming, typename Outgoing>
class ServerStream {
 public:
  enum class End {
    kOrderly,  // the client got everything that was sent
    kBroken,
  };

  virtual ~ServerStream() = default;
  ServerStream(const ServerStream&) = delete;
  ServerStream& operator=(const ServerStream&) = delete;

  // Writes what is queued, then ends the stream with `status`.
  void Close(const absl::Status& status) {
    // The first status counts: Close is also called by the read that notices the end.
    if (!closing()) {
      close_status_ = status;
      closing_since_ = std::chrono::steady_clock::now();
    }
    FinishIfDrained();
  }
  // Ends the stream now; the client sees a broken connection.
  void Cancel() {
    // Dropped messages must not count as read.
    end_ = End::kBroken;
    DropOutgoing();
    Close(absl::CancelledError("replaced or refused"));
    // Close alone would wait for a write that the client may never read.
    context_.TryCancel();
  }

  // As ServerContext::peer() names it.
  std::string peer() const { return context_.peer(); }
  // When the client opened the stream; nullopt: not yet.
  std::optional<std::chrono::steady_clock::time_point> accepted_at() const { return accepted_at_; }
  bool closing() const { return closing_since_.has_value(); }
  std::optional<std::chrono::steady_clock::time_point> closing_since() const { return closing_since_; }

 protected:
  using Stream = grpc::ServerAsyncReaderWriter<Outgoing, Incoming>;

  ServerStream() = default;

  virtual void OnAccepted() = 0;
  // Not while the stream is closing. May take the message away.
  virtual void OnIncoming(Incoming* message) = 0;
  // The messages that wait to be written, one at a time.
  virtual bool HasOutgoing() const = 0;
  virtual Outgoing TakeOutgoing() = 0;
  virtual void DropOutgoing() = 0;
  virtual void OnWritten() {}        // the message that was taken last, or not: the stream may have broken
  virtual void OnGone(End end) = 0;  // may destroy this object

  // A message waits to be written. If a write is under way, the message follows it.
  void WriteNext() {
    if (!writing_) Write();
  }

  grpc::ServerContext* context() { return &context_; }
  Stream* stream() { return &stream_; }
  CompletionTag* accept_tag() { return &accept_tag_; }

 private:
  void OnAccept(bool ok) {
    if (!ok) {  // the server is shutting down
      OnGone(End::kBroken);
      return;
    }
    // From here on the stream counts against the time that a stranger has for its first message.
    accepted_at_ = std::chrono::steady_clock::now();
    OnAccepted();
    Read();
  }

  void Read() {
    reading_ = true;
    stream_.Read(&incoming_, &read_tag_);
  }

  void OnRead(bool ok) {
    reading_ = false;
    if (!ok) {  // the client has closed its side, or the connection broke
      Close(absl::OkStatus());
      GoneIfDone();
      return;
    }
    if (!closing()) OnIncoming(&incoming_);
    // It reads while it is closing, too: only the end of a read shows that the client is gone.
    if (!finishing_) Read();
  }

  void Write() {
    writing_ = true;
    // gRPC allows one write at a time; the next one begins in OnWrite.
    stream_.Write(TakeOutgoing(), &write_tag_);
  }

  void OnWrite(bool ok) {
    writing_ = false;
    OnWritten();
    if (!ok) {
      // Queued messages cannot be delivered on this stream. The client repeats its requests on its next stream.
      end_ = End::kBroken;
      DropOutgoing();
      Close(absl::UnavailableError("the connection broke"));
    } else if (HasOutgoing()) {
      Write();
    } else {
      FinishIfDrained();
    }
  }

  void FinishIfDrained() {
    // gRPC allows Finish only when no write is pending.
    if (!closing() || writing_ || HasOutgoing() || finishing_) return;
    finishing_ = true;
    stream_.Finish(ToGrpcStatus(close_status_), &finish_tag_);
  }

  void OnFinish(bool ok) {
    finished_ = true;
    if (!ok) end_ = End::kBroken;
    GoneIfDone();
  }

  // gRPC returns a read that is pending when the stream ends after Finish. Until then its tag points into this object.
  void GoneIfDone() {
    if (finished_ && !reading_) OnGone(end_);
  }

  grpc::ServerContext context_;
  Stream stream_{&context_};
  CompletionTag accept_tag_{[this](bool ok) { OnAccept(ok); }};
  CompletionTag read_tag_{[this](bool ok) { OnRead(ok); }};
  CompletionTag write_tag_{[this](bool ok) { OnWrite(ok); }};
  CompletionTag finish_tag_{[this](bool ok) { OnFinish(ok); }};
  Incoming incoming_;
  std::optional<std::chrono::steady_clock::time_point> accepted_at_;
  bool reading_ = false;
  bool writing_ = false;
  std::optional<std::chrono::steady_clock::time_point> closing_since_;
  bool finishing_ = false;
  bool finished_ = false;
  End end_ = End::kOrderly;
  absl::Status close_status_;
};

}  // namespace starring

#endif  // STARRING_SERVER_DOOR_SERVER_STREAM_H_
