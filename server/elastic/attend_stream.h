// A member's stream at the coordinator's end; common/wire/member_link.h is the other one.
//
// Life: Accept asks gRPC for the next stream; on_accepted when a member opened it; on_report for each report; on_gone
// when the stream is over and has no tag left in the completion queue. It may be destroyed only then.
//
// Thread safety: one thread, the one that polls the completion queue.
#ifndef STARRING_SERVER_ELASTIC_ATTEND_STREAM_H_
#define STARRING_SERVER_ELASTIC_ATTEND_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/wire/grpc_transport.h"
#include "proto/starring/v1/coordinator.grpc.pb.h"

namespace starring {

using AsyncCoordinatorService =
    v1::Coordinator::WithAsyncMethod_Attend<v1::Coordinator::WithAsyncMethod_GetRun<v1::Coordinator::Service>>;

class AttendStream {
 public:
  struct Events {
    std::function<void(AttendStream*)> on_accepted;
    std::function<void(AttendStream*, const v1::MemberReport&)> on_report;
    std::function<void(AttendStream*)> on_gone;  // may destroy the stream
  };
  // `events` outlives the stream.
  explicit AttendStream(const Events* events) : events_(*events) {}

  void Accept(AsyncCoordinatorService* service, grpc::ServerCompletionQueue* queue) {
    service->RequestAttend(&context_, &stream_, queue, queue, &accept_tag_);
  }
  // Queues an order. No effect on a stream that is closing.
  void Send(const v1::MemberOrder& order);
  // Writes what is queued, then ends the stream with `status`.
  void Close(const absl::Status& status);
  // Ends it now: a member that does not read would keep it open.
  void Cancel();

  // As ServerContext::peer() names it.
  std::string peer() const { return context_.peer(); }
  // When the member opened it; nullopt: not yet.
  std::optional<std::chrono::steady_clock::time_point> accepted_at() const { return accepted_at_; }
  bool closing() const { return closing_; }

  // The member's number, once its first report was taken. Set by the owner of the streams.
  std::optional<uint64_t> member;

 private:
  void OnAccept(bool ok);
  void OnRead(bool ok);
  void OnWrite(bool ok);
  void Write();
  void FinishIfDrained();
  void GoneIfDone();

  const Events& events_;
  grpc::ServerContext context_;
  grpc::ServerAsyncReaderWriter<v1::MemberOrder, v1::MemberReport> stream_{&context_};
  CompletionTag accept_tag_{[this](bool ok) { OnAccept(ok); }};
  CompletionTag read_tag_{[this](bool ok) { OnRead(ok); }};
  CompletionTag write_tag_{[this](bool ok) { OnWrite(ok); }};
  CompletionTag finish_tag_{[this](bool) {
    finished_ = true;
    GoneIfDone();
  }};
  v1::MemberReport incoming_;
  std::deque<v1::MemberOrder> outgoing_;
  std::optional<std::chrono::steady_clock::time_point> accepted_at_;
  bool reading_ = false;
  bool writing_ = false;
  bool closing_ = false;
  bool finishing_ = false;
  bool finished_ = false;
  absl::Status close_status_;
};

}  // namespace starring

#endif  // STARRING_SERVER_ELASTIC_ATTEND_STREAM_H_
