#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/error_origin.h"
#include "common/mutex.h"
#include "common/nonce.h"
#include "common/status.h"
#include "common/steady_time.h"
#include "common/wall_time.h"
#include "common/wire/exchange_message.h"
#include "common/wire/grpc_transport.h"
#include "proto/starring/v1/parameter_server.grpc.pb.h"
#include "worker/exchange/star/star_client.h"

namespace starring {
namespace {

constexpr absl::Duration kRetryPause = absl::Milliseconds(50);
// How long to wait for a connection before asking again why there is none.
constexpr absl::Duration kConnectWait = absl::Seconds(1);
// The pause if another process has this rank at the server. The rank becomes free when the server notices that the
// process is gone, which takes seconds.
constexpr absl::Duration kTakenPause = absl::Milliseconds(500);
// In an elastic run a Join is asked anew so often: its generation may be over before the server answers.
constexpr absl::Duration kElasticPatience = absl::Seconds(1);
// After so many refusals, about a second, a line says why this worker waits.
constexpr int kTakenCountSaid = 3;
// The server names the missing ranks when the deadline has passed, so its answer arrives a little later than that.
constexpr absl::Duration kAnswerGrace = absl::Seconds(2);

// What the end of a Join says about its cause. `has_answered`: it came from the server, and not from this side's
// deadline.
ErrorOrigin OriginOfRefusal(grpc::StatusCode code, int shard, bool has_answered) {
  using Kind = ErrorOrigin::Kind;
  switch (code) {
    case grpc::StatusCode::UNAVAILABLE:
      return {.kind = Kind::kServer, .number = shard};
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return {.kind = has_answered ? Kind::kMissingWorkers : Kind::kServer, .number = shard};
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return {.kind = Kind::kNoRoom, .number = shard};
    case grpc::StatusCode::ABORTED:
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::FAILED_PRECONDITION:
      return {.kind = Kind::kExchange};
    default:
      return {};  // what this worker was given does not fit, such as flags that differ
  }
}

// Says why a Join takes long: which ranks have not joined, or that the server does not answer. It watches one Join,
// from its construction to its destruction. Both happen on one thread; a thread of the watch does the rest.
class JoinWatch {
 public:
  // `server`: its name in messages. `channel`: a connection to it; shared, because gRPC wants it so. `token`: the job's
  // token, which may be empty.
  JoinWatch(std::string server, std::shared_ptr<grpc::Channel> channel, std::string token, const StallOptions& stall);
  ~JoinWatch();

 private:
  void Run();
  std::string WhoIsMissing();

  const std::string server_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::string token_;
  const StallTimes times_;
  const std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
  grpc::ClientContext context_;  // of the question to the server; the destructor cancels it
  StallReport report_;           // used by thread_ and, once it has ended, by the destructor
  Mutex mutex_;
  ConditionVariable changed_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

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
  // This ends the question if it is being asked, and refuses it if it has not begun.
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
  // The question is asked without the mutex, which the destructor needs before it can cancel the question.
  const std::string missing = WhoIsMissing();
  const MutexLock lock(mutex_);
  if (!over_) report_.Open(0, since_, StallSentence(std::chrono::steady_clock::now() - since_, "joining", missing));
}

std::string JoinWatch::WhoIsMissing() {
  context_.set_deadline(std::chrono::system_clock::now() + times_.patience());
  v1::GetStatusRequest request;
  request.set_token(token_);
  v1::GetStatusReply reply;
  // The question takes the connection of the Join that waits: what keeps the one from arriving keeps the other, too.
  const grpc::Status status = v1::ParameterServer::NewStub(channel_)->GetStatus(&context_, request, &reply);
  if (status.ok() && !reply.message().empty()) return absl::StrCat(server_, ": ", reply.message());
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    return absl::StrCat(server_, " cannot be reached: ", status.error_message());
  }
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) return absl::StrCat(server_, " does not answer");
  return absl::StrCat(server_, " waits for other workers to join");
}

absl::StatusOr<uint64_t> JoinOne(const StarClient::Shard& target, v1::JoinRequest request,
                                 const TransportSecurity& security, absl::Time deadline, absl::Duration join_deadline,
                                 const std::function<void(const std::string&)>& say,
                                 const std::function<bool()>& superseded) {
  const std::string server = absl::StrCat("server ", target.address, " (shard ", request.shard(), ")");
  const auto stub = v1::ParameterServer::NewStub(target.lanes[0]);
  int taken_count = 0;
  while (true) {
    if (superseded != nullptr && superseded()) {
      return WithOrigin(absl::UnavailableError("the generation is over"), {.kind = ErrorOrigin::Kind::kExchange});
    }
    // This is what is left of the deadline. So the server, which knows the missing ranks, gives up before this side
    // does.
    request.set_join_deadline_ms(absl::ToInt64Milliseconds(BoundedDeadline(deadline - SteadyNow())));
    grpc::ClientContext context;
    // gRPC's deadlines are of the wall clock; ours is of the steady one.
    const absl::Duration patience = superseded == nullptr ? (deadline - SteadyNow()) + kAnswerGrace : kElasticPatience;
    const absl::Time asked = SteadyNow();
    context.set_deadline(WallTimeOf(asked + patience));
    v1::JoinReply reply;
    const grpc::Status status = stub->Join(&context, request, &reply);
    if (status.ok()) return reply.job_id();
    // A Join may be repeated, and the server may be one that will never answer.
    if (superseded != nullptr && status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED && SteadyNow() < deadline) {
      continue;
    }
    // A worker that replaces one whose machine has died meets its predecessor's rank until the server notices.
    const bool is_taken = status.error_code() == grpc::StatusCode::ALREADY_EXISTS;
    if (const absl::Duration left = deadline - SteadyNow(); is_taken && kTakenPause < left) {
      if (++taken_count == kTakenCountSaid && say != nullptr) {
        say(absl::StrCat(server, ": ", status.error_message(), "; trying for ",
                         absl::FormatDuration(absl::Ceil(left, absl::Seconds(1))),
                         " more, in case that process is gone"));
      }
      absl::SleepFor(kTakenPause);
      continue;
    }
    // Only a server that cannot be reached is tried again. Any other answer is a decision, such as flags that differ.
    const ErrorOrigin origin =
        OriginOfRefusal(status.error_code(), request.shard(), /*has_answered=*/SteadyNow() < asked + patience);
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE) {
      return WithOrigin(absl::Status(FromGrpcStatus(status).code(), absl::StrCat(server, ": ", status.error_message())),
                        origin);
    }
    const absl::Status reason = ExplainConnectionError(status.error_message(), security);
    if (!absl::IsUnavailable(reason)) {
      return absl::Status(reason.code(), absl::StrCat(server, ": ", std::string(reason.message())));
    }
    if (SteadyNow() + kRetryPause >= deadline) {
      return WithOrigin(
          absl::UnavailableError(absl::StrCat(server, " cannot be reached within ", absl::FormatDuration(join_deadline),
                                              ": ", std::string(reason.message()))),
          origin);
    }
    absl::SleepFor(kRetryPause);
    // gRPC 1.51 drives a handshake only while a call waits for it. The call above fails at once while there is no
    // connection, so without this wait a TLS handshake would never end. Returns as soon as there is a connection.
    target.lanes[0]->WaitForConnected(WallTimeOf(SteadyNow() + std::min(deadline - SteadyNow(), kConnectWait)));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<StarClient>> StarClient::Join(const JobSpec& job, Options options) {
  const absl::Time deadline = SteadyNow() + job.join_deadline;
  v1::JoinRequest request;
  request.set_run_id(options.run_id);
  request.set_wire_version(kWireVersion);
  request.set_token(options.security.token);
  request.set_rank(job.rank);
  request.set_worker_id(DrawNonce());
  request.set_shard_count(static_cast<int>(options.shards.size()));
  request.set_agreement(SerializeAgreement(job));
  request.set_exchange_deadline_ms(absl::ToInt64Milliseconds(BoundedDeadline(job.exchange_deadline)));
  request.set_stall_report_ms(options.stall.times.report_after.count());
  // The shards are asked one after the other, with one deadline for all. Join at shard 0 returns when all workers are
  // there, so the other shards answer soon.
  for (size_t s = 0; s < options.shards.size(); ++s) {
    Shard& shard = options.shards[s];
    request.set_shard(static_cast<int>(s));
    request.set_lanes(static_cast<int>(shard.lanes.size()));
    const JoinWatch watch(absl::StrCat("server ", shard.address, " (shard ", s, ")"), shard.lanes[0],
                          options.security.token, options.stall);
    ASSIGN_OR_RETURN(shard.job_id, JoinOne(shard, request, options.security, deadline, job.join_deadline,
                                           options.stall.say, options.superseded));
  }
  return absl::WrapUnique(new StarClient(job, std::move(options)));
}

}  // namespace starring
