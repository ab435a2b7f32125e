// One Exchange stream at the server; worker/exchange/star/lane.h is the other end. Messages are read as gRPC's own
// slices, and written answers refer to our memory, so that no array is copied. server_stream.h tells its life.
//
// Thread safety: one thread, the one that polls the completion queue.
#ifndef STARRING_SERVER_SHARD_EXCHANGE_LANE_H_
#define STARRING_SERVER_SHARD_EXCHANGE_LANE_H_

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <optional>

#include "common/metrics/trace.h"
#include "common/wire/grpc_transport.h"
#include "proto/starring/v1/parameter_server.grpc.pb.h"
#include "server/door/server_stream.h"
#include "server/shard/collective_wait.h"
#include "server/shard/shard_job.h"

namespace starring {

// Exchange as bytes, the other methods as protobuf messages.
using RawParameterServerService =
    v1::ParameterServer::WithRawMethod_Exchange<v1::ParameterServer::WithAsyncMethod_Challenge<
        v1::ParameterServer::WithAsyncMethod_Join<v1::ParameterServer::WithAsyncMethod_GetStatus<
            v1::ParameterServer::WithAsyncMethod_Check<v1::ParameterServer::Service>>>>>;

class ExchangeLane final : public ServerStream<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  struct Events {
    std::function<void(ExchangeLane*)> on_accepted;
    std::function<void(ExchangeLane*, const ReceivedMessage&)> on_message;
    std::function<void(ExchangeLane*, End)> on_gone;  // may destroy the lane
  };
  // `events` outlives the lane.
  explicit ExchangeLane(const Events* events) : events_(*events) {}

  void Accept(RawParameterServerService* service, grpc::ServerCompletionQueue* queue) {
    service->RequestExchange(context(), stream(), queue, queue, accept_tag());
  }

  // Queues an answer. No effect on a lane that is closing.
  void Send(Answer answer);

  // The worker's name for this lane, once HELLO has arrived. Set by the owner of the lanes.
  std::optional<LaneId> id;
  // Where answers to gradients are traced; null: there is no trace. Set by the owner of the lanes.
  TraceTrack* track = nullptr;

 private:
  struct Outgoing {
    Answer answer;
    int next_part = 0;   // see exchange_message.h
    TraceLabels labels;  // with a step if the answer is traced
  };

  void OnAccepted() override { events_.on_accepted(this); }
  void OnIncoming(grpc::ByteBuffer* message) override;
  bool HasOutgoing() const override { return !outgoing_.empty(); }
  grpc::ByteBuffer TakeOutgoing() override;
  void DropOutgoing() override { outgoing_.clear(); }
  void OnWritten() override;
  void OnGone(End end) override { events_.on_gone(this, end); }
  // Takes the next message of an answer that waits. True if it was the answer's last.
  [[nodiscard]] static bool TakePart(Outgoing* outgoing, grpc::ByteBuffer* message);

  const Events& events_;
  std::deque<Outgoing> outgoing_;
  TraceEvent write_;  // the message that is being written; has a name if it is traced
};

}  // namespace starring

#endif  // STARRING_SERVER_SHARD_EXCHANGE_LANE_H_
