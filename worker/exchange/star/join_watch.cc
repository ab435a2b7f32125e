#include "worker/exchange/star/join_watch.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/starring/v1/parameter_server.grpc.pb.h"

namespace starring {

JoinWatch::JoinWatch(std::string server, std::shared_ptr<grpc::Channel> channel, std::string token,
                     const StallOptions& stall)
    : server_(std::move(server)),
      channel_(std::move(channel)),
      token_(std::move(token)),
      times_(stall.times),
      report_(stall.say) {
  if (times_.enabled()) thread_ = std::thread([this] { Run(); });
}

JoinWatch::~JoinWatch() {
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(mutex_);
    over_ = true;
  }
  changed_.NotifyOne();
  context_.TryCancel();
  thread_.join();
  report_.Close(0, std::chrono::steady_clock::now());
}

void JoinWatch::Run() {
  {
    const MutexLock lock(mutex_);
    if (changed_.WaitUntil(mutex_, since_ + times_.report_after,
                           [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return over_; })) {
      return;
    }
  }
  const std::string missing = WhoIsMissing();
  const MutexLock lock(mutex_);
  if (!over_) report_.Open(0, since_, StallSentence(std::chrono::steady_clock::now() - since_, "joining", missing));
}

std::string JoinWatch::WhoIsMissing() {
  context_.set_deadline(std::chrono::system_clock::now() + times_.patience());
  v1::GetStatusRequest request;
  request.set_token(token_);
  v1::GetStatusReply reply;
  const grpc::Status status = v1::ParameterServer::NewStub(channel_)->GetStatus(&context_, request, &reply);
  if (status.ok() && !reply.message().empty()) return absl::StrCat(server_, ": ", reply.message());
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    return absl::StrCat(server_, " cannot be reached: ", status.error_message());
  }
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) return absl::StrCat(server_, " does not answer");
  return absl::StrCat(server_, " waits for other workers to join");
}

}  // namespace starring
