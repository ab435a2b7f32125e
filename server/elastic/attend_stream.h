// A member's stream at the coordinator's end; common/wire/member_link.h is the other one. server_stream.h tells its
// life.
//
// Thread safety: one thread, the one that polls the completion queue.
#ifndef STARRING_SERVER_ELASTIC_ATTEND_STREAM_H_
#define STARRING_SERVER_ELASTIC_ATTEND_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "common/base/limits.h"
#include "proto/starring/v1/coordinator.grpc.pb.h"
#include "server/door/server_stream.h"

namespace starring {

using AsyncCoordinatorService =
    v1::Coordinator::WithAsyncMethod_Attend<v1::Coordinator::WithAsyncMethod_GetRun<v1::Coordinator::Service>>;

class AttendStream final : public ServerStream<v1::MemberReport, v1::MemberOrder> {
 public:
  struct Events {
    std::function<void(AttendStream*)> on_accepted;
    std::function<void(AttendStream*, const v1::MemberReport&)> on_report;
    std::function<void(AttendStream*, End)> on_gone;  // may destroy the stream
  };
  // `events` outlives the stream.
  explicit AttendStream(const Events* events) : events_(*events) {}

  void Accept(AsyncCoordinatorService* service, grpc::ServerCompletionQueue* queue) {
    service->RequestAttend(context(), stream(), queue, queue, accept_tag());
  }

  // Queues an order. No effect on a stream that is closing.
  void Send(const v1::MemberOrder& order) {
    if (closing()) return;
    // A member that does not read is silent soon, and is given up: what it was told before does not matter then.
    if (std::ssize(outgoing_) >= kOrdersWaitingMax) outgoing_.pop_front();
    outgoing_.push_back(order);
    WriteNext();
  }

  // The member's number, once its first report was taken. Set by the owner of the streams.
  std::optional<uint64_t> member;
  std::string name;          // what the member calls itself
  std::optional<int> shard;  // the number that the member reports, if it is a shard
  bool ends_run = false;     // the last order tells the member that the run has ended

 private:
  void OnAccepted() override { events_.on_accepted(this); }
  void OnIncoming(v1::MemberReport* report) override { events_.on_report(this, *report); }
  bool HasOutgoing() const override { return !outgoing_.empty(); }
  v1::MemberOrder TakeOutgoing() override {
    v1::MemberOrder order = std::move(outgoing_.front());
    outgoing_.pop_front();
    return order;
  }
  void DropOutgoing() override { outgoing_.clear(); }
  void OnGone(End end) override { events_.on_gone(this, end); }

  const Events& events_;
  std::deque<v1::MemberOrder> outgoing_;
};

}  // namespace starring

#endif  // STARRING_SERVER_ELASTIC_ATTEND_STREAM_H_
