// One unary call at the server, answered now or later.
//
// Life: the constructor asks gRPC for the next call; on_request when one has arrived; Answer or Refuse once, or never
// if the client went away; on_gone when the call is over and has no tag left in the completion queue. It may be
// destroyed only then.
//
// Thread safety: one thread, the one that polls the completion queue.
#ifndef STARRING_SERVER_DOOR_UNARY_CALL_H_
#define STARRING_SERVER_DOOR_UNARY_CALL_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "common/wire/grpc_transport.h"

namespace starring {

template <typename Request, typename Reply>
class UnaryCall {
 public:
  using Responder = grpc::ServerAsyncResponseWriter<Reply>;
  struct Events {
    std::function<void(UnaryCall*)> on_request;
    std::function<void(UnaryCall*)> on_gone;  // may destroy the call
  };
  // Asks gRPC for the next call of one method.
  using Listen = std::function<void(grpc::ServerContext*, Request*, Responder*, void* tag)>;

  // `events` outlives the call.
  UnaryCall(const Events* events, const Listen& listen) : events_(*events) {
    context_.AsyncNotifyWhenDone(&done_tag_);
    listen(&context_, &request_, &responder_, &request_tag_);
  }

  const Request& request() const { return request_; }
  // As ServerContext::peer() names it; meaningful from on_request on.
  std::string peer() const { return context_.peer(); }

  // REQUIRES: one of the two is called, once, and before on_gone.
  void Answer(const Reply& reply) {
    answering_ = true;
    responder_.Finish(reply, grpc::Status::OK, &answer_tag_);
  }
  void Refuse(const absl::Status& status) {
    answering_ = true;
    responder_.FinishWithError(ToGrpcStatus(status), &answer_tag_);
  }

 private:
  void OnRequest(bool ok) {
    if (ok) {
      events_.on_request(this);
    } else {  // the server is shutting down, and the done tag will not come
      events_.on_gone(this);
    }
  }
  void OnAnswered() {
    answering_ = false;
    if (done_) events_.on_gone(this);
  }
  void OnDone() {
    done_ = true;
    if (!answering_) events_.on_gone(this);
  }

  const Events& events_;
  grpc::ServerContext context_;
  Request request_;
  Responder responder_{&context_};
  CompletionTag request_tag_{[this](bool ok) { OnRequest(ok); }};
  CompletionTag answer_tag_{[this](bool) { OnAnswered(); }};
  CompletionTag done_tag_{[this](bool) { OnDone(); }};
  bool answering_ = false;
  bool done_ = false;
};

}  // namespace starring

#endif  // STARRING_SERVER_DOOR_UNARY_CALL_H_
