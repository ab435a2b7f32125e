// One Exchange stream at the server; worker/exchange/star/lane.h is the other end. Messages are read as gRPC's own
// slices, and written answers refer to our memory, so that no array is copied.
//
// Life: Accept asks gRPC for the next stream; on_accepted when a worker opened it; on_message for each message;
// on_gone when the stream is over and has no tag left in the completion queue. It may be destroyed only then.
//
// Thread safety: one thread, the one that polls the completion queue.
#ifndef STARRING_SERVER_EXCHANGE_LANE_H_
#define STARRING_SERVER_EXCHANGE_LANE_H_

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/trace.h"
#include "common/wire/grpc_transport.h"
#include "proto/starring/v1/parameter_server.grpc.pb.h"
#include "server/collective_wait.h"
#include "server/shard_job.h"

namespace starring {

// Join, GetStatus and Check as protobuf messages, Exchange as bytes.
using RawParameterServerService = v1::ParameterServer::WithRawMethod_Exchange<
    v1::ParameterServer::WithAsyncMethod_Join<v1::ParameterServer::WithAsyncMethod_GetStatus<
        v1::ParameterServer::WithAsyncMethod_Check<v1::ParameterServer::Service>>>>;

class ExchangeLane {
 public:
  enum class End { kOrderly, kBroken };
  struct Events {
    std::function<void(ExchangeLane*)> on_accepted;
    std::function<void(ExchangeLane*, const ReceivedMessage&)> on_message;
    // May destroy the lane. kOrderly: the worker got everything that was sent.
    std::function<void(ExchangeLane*, End)> on_gone;
  };
  // `events` outlives the lane.
  explicit ExchangeLane(const Events* events) : events_(*events) {}

  void Accept(RawParameterServerService* service, grpc::ServerCompletionQueue* queue);

  // Queues an answer. No effect on a lane that is closing.
  void Send(Answer answer);

  // Writes what is queued, then ends the stream with `status`.
  void Close(const absl::Status& status);
  // Ends the stream now; the peer sees a broken connection.
  void Cancel();

  // As ServerContext::peer() names it.
  std::string peer() const { return context_.peer(); }
  // When the worker opened the stream; nullopt: not yet.
  std::optional<std::chrono::steady_clock::time_point> accepted_at() const { return accepted_at_; }
  bool closing() const { return closing_; }

  // The worker's name for this lane, once HELLO has arrived. Set by the owner of the lanes.
  std::optional<LaneId> id;
  // Where answers to gradients are traced; null: there is no trace. Set by the owner of the lanes.
  TraceTrack* track = nullptr;

 private:
  void OnAccept(bool ok);
  void OnRead(bool ok);
  void OnWrite(bool ok);
  void OnFinish(bool ok);
  void Write();
  void FinishIfDrained();
  void GoneIfDone();

  const Events& events_;
  grpc::ServerContext context_;
  grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer> stream_{&context_};
  CompletionTag accept_tag_{[this](bool ok) { OnAccept(ok); }};
  CompletionTag read_tag_{[this](bool ok) { OnRead(ok); }};
  CompletionTag write_tag_{[this](bool ok) { OnWrite(ok); }};
  CompletionTag finish_tag_{[this](bool ok) { OnFinish(ok); }};

  grpc::ByteBuffer incoming_;
  struct Outgoing {
    Answer answer;
    int next_part = 0;   // see exchange_message.h
    TraceLabels labels;  // with a step if the answer is traced
  };
  // Takes the next message of an answer that waits. True if it was the answer's last.
  [[nodiscard]] static bool TakePart(Outgoing* outgoing, grpc::ByteBuffer* message);
  std::deque<Outgoing> outgoing_;
  TraceEvent write_;  // the message that is being written; has a name if it is traced
  std::optional<std::chrono::steady_clock::time_point> accepted_at_;
  bool reading_ = false;
  bool writing_ = false;
  bool closing_ = false;
  bool finishing_ = false;
  bool finished_ = false;
  End end_ = End::kOrderly;
  absl::Status close_status_;
};

}  // namespace starring

#endif  // STARRING_SERVER_EXCHANGE_LANE_H_
