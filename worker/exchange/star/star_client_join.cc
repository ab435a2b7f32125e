#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/error_origin.h"
#include "common/base/mutex.h"
#include "common/base/nonce.h"
#include "common/base/status.h"
#include "common/base/steady_time.h"
#include "common/base/wall_time.h"
#include "common/network/dial.h"
#include "common/wire/challenge.h"
#include "common/wire/exchange_message.h"
#include "common/wire/grpc_transport.h"
#include "common/wire/request_proof.h"
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
// The pause if the process that answers at the server's address does not prove that it has the job's secret.
constexpr absl::Duration kUnprovedPause = absl::Milliseconds(500);
// In an elastic run a Join is repeated after this time: its generation may be over before the server answers.
constexpr absl::Duration kElasticPatience = absl::Seconds(1);
// After so many refusals, about a second, a line says why this worker waits.
constexpr int kTakenCountSaid = 3;
// The server names the missing ranks when the deadline has passed, so its answer arrives a little later than that.
constexpr absl::Duration kAnswerGrace = absl::Seconds(2);

// The cause that the end of a Join shows. `has_answered`: the end came from the server, and not from this side's
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
  // `server`: its name in messages. `channel`: a connection to it; shared, because gRPC wants it so. `key`: the job's,
  // for requests, which may be empty.
  JoinWatch(std::string server, std::shared_ptr<grpc::Channel> channel, std::string key, const StallOptions& stall);
  ~JoinWatch();

  // Without this call the Join has failed, and the job does not go on.
  void SetJoined() { joined_ = true; }

 private:
  void Run();
  std::string WhoIsMissing();

  const std::string server_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::string key_;
  const StallTimes times_;
  const std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
  // The contexts of the questions to the server; the destructor cancels the questions.
  grpc::ClientContext challenge_context_;
  grpc::ClientContext context_;
  bool joined_ = false;
  StallReport report_;  // used by thread_ and, once it has ended, by the destructor
  Mutex mutex_;
  ConditionVariable changed_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

JoinWatch::JoinWatch(std::string server, std::shared_ptr<grpc::Channel> channel, std::string key,
                     const StallOptions& stall)
    : server_(std::move(server)),
      channel_(std::move(channel)),
      key_(std::move(key)),
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
  challenge_context_.TryCancel();
  context_.TryCancel();
  thread_.join();
  if (joined_) report_.Close(0, std::chrono::steady_clock::now());
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
  const auto end = std::chrono::system_clock::now() + times_.patience();
  challenge_context_.set_deadline(end);
  context_.set_deadline(end);
  // The question takes the connection of the Join that waits: an obstacle to the Join is an obstacle to the question,
  // too.
  const auto stub = v1::ParameterServer::NewStub(channel_);
  RequestSigner signer(key_);
  absl::Status status = Challenge(*stub, &challenge_context_, &signer);
  if (absl::IsUnauthenticated(status)) return absl::StrCat(server_, " ", std::string(status.message()));
  v1::GetStatusReply reply;
  if (status.ok()) {
    v1::GetStatusRequest request;
    signer.Sign(kGetStatusMethod, &request);
    status = FromGrpcStatus(stub->GetStatus(&context_, request, &reply));
  }
  if (status.ok() && !reply.message().empty()) return absl::StrCat(server_, ": ", reply.message());
  if (absl::IsUnavailable(status)) {
    return absl::StrCat(server_, " cannot be reached: ", std::string(status.message()));
  }
  if (absl::IsDeadlineExceeded(status)) return absl::StrCat(server_, " does not answer");
  return absl::StrCat(server_, " waits for other workers to join");
}

// Where JoinOne asks, and how long.
struct JoinTarget {
  const StarClient::Shard& shard;
  std::string name;  // of the server, in messages
  const StarClient::Options& options;
  absl::Time deadline;
  absl::Duration join_deadline;  // as the job has it
};

// The outcome of one attempt to join.
struct JoinAttempt {
  absl::Status status;     // as gRPC says it, or why the server is not believed
  bool is_proved = false;  // the server has proved that it has the job's secret, if there is one
  ErrorOrigin origin;
  uint64_t job_id = 0;
};

JoinAttempt AskToJoin(const JoinTarget& target, v1::JoinRequest& request, v1::ParameterServer::Stub& stub) {
  // This is the rest of the deadline. So the server, which knows the missing ranks, gives up before this side does.
  request.set_join_deadline_ms(absl::ToInt64Milliseconds(BoundedDeadline(target.deadline - SteadyNow())));
  // gRPC's deadlines are of the wall clock; ours is of the steady one.
  const bool is_elastic = target.options.superseded != nullptr;
  const absl::Time patience = is_elastic ? SteadyNow() + kElasticPatience : target.deadline + kAnswerGrace;
  const auto end = WallTimeOf(patience);
  RequestSigner signer(target.options.security.request_key);
  grpc::ClientContext challenge_context, context;
  challenge_context.set_deadline(end);
  context.set_deadline(end);
  JoinAttempt attempt{.origin = {.kind = ErrorOrigin::Kind::kServer, .number = request.shard()}};
  attempt.status = Challenge(stub, &challenge_context, &signer);
  if (!attempt.status.ok()) return attempt;
  attempt.is_proved = true;
  signer.Sign(kJoinMethod, &request);
  v1::JoinReply reply;
  const grpc::Status status = stub.Join(&context, request, &reply);
  attempt.status = FromGrpcStatus(status);
  attempt.origin = OriginOfRefusal(status.error_code(), request.shard(), /*has_answered=*/SteadyNow() < patience);
  attempt.job_id = reply.job_id();
  return attempt;
}

// Why this worker waits on, said once.
class TryingLine {
 public:
  explicit TryingLine(const JoinTarget& target) : target_(target) {}

  void Say(const absl::Status& why, absl::string_view hope) {
    if (std::exchange(said_, true) || target_.options.stall.say == nullptr) return;
    const absl::Duration left = target_.deadline - SteadyNow();
    target_.options.stall.say(absl::StrCat(target_.name, ": ", std::string(why.message()), "; trying for ",
                                           absl::FormatDuration(absl::Ceil(left, absl::Seconds(1))), " more", hope));
  }

 private:
  const JoinTarget& target_;
  bool said_ = false;
};

// Why an attempt has failed, for people.
absl::Status ReasonOf(const JoinTarget& target, const absl::Status& status) {
  if (absl::IsUnavailable(status)) {
    return ExplainConnectionError(std::string(status.message()), target.options.security);
  }
  // A call waits for the channel's first connection until the call's own deadline, and says no more than that.
  if (absl::IsDeadlineExceeded(status) && target.shard.lanes[0]->GetState(false) != GRPC_CHANNEL_READY) {
    return absl::DeadlineExceededError(absl::StrCat("nothing answers at its address", kFirewallCause, kFirewallWayOut));
  }
  return status;
}

absl::StatusOr<uint64_t> JoinOne(const JoinTarget& target, v1::JoinRequest request) {
  const auto stub = v1::ParameterServer::NewStub(target.shard.lanes[0]);
  TryingLine unproved(target), taken(target);
  int taken_count = 0;
  while (true) {
    const bool is_elastic = target.options.superseded != nullptr;
    if (is_elastic && target.options.superseded()) {
      return WithOrigin(absl::UnavailableError("the generation is over"), {.kind = ErrorOrigin::Kind::kExchange});
    }
    const JoinAttempt attempt = AskToJoin(target, request, *stub);
    if (attempt.status.ok()) return attempt.job_id;
    const absl::Duration left = target.deadline - SteadyNow();
    // A Join may be repeated, and the server may be one that will never answer.
    if (is_elastic && absl::IsDeadlineExceeded(attempt.status) && left > absl::ZeroDuration()) continue;
    // A worker that replaces one whose machine has died meets its predecessor's rank until the server notices.
    if (attempt.is_proved && absl::IsAlreadyExists(attempt.status) && kTakenPause < left) {
      if (++taken_count == kTakenCountSaid) taken.Say(attempt.status, ", in case that process is gone");
      absl::SleepFor(kTakenPause);
      continue;
    }
    const absl::Status reason = ReasonOf(target, attempt.status);
    if (!absl::IsUnavailable(reason)) {
      // A decision of the job's server, such as flags that differ, is final. A process that has taken the server's port
      // for a while must not end this worker.
      const bool is_final =
          attempt.is_proved || absl::IsDeadlineExceeded(reason) || absl::IsUnavailable(attempt.status);
      if (is_final || kUnprovedPause >= left) {
        const absl::Status why(reason.code(), absl::StrCat(target.name, ": ", std::string(reason.message())));
        // How a server is protected is what this worker was told.
        return absl::IsUnavailable(attempt.status) ? why : WithOrigin(why, attempt.origin);
      }
      unproved.Say(reason, ", in case the job's server comes");
      absl::SleepFor(kUnprovedPause);
      continue;
    }
    if (kRetryPause >= left) {
      return WithOrigin(absl::UnavailableError(absl::StrCat(target.name, " cannot be reached within ",
                                                            absl::FormatDuration(target.join_deadline), ": ",
                                                            std::string(reason.message()))),
                        attempt.origin);
    }
    absl::SleepFor(kRetryPause);
    // gRPC 1.51 drives a handshake only while a call waits for it. The call above fails at once while there is no
    // connection, so without this wait a TLS handshake would never end. Returns as soon as there is a connection.
    const absl::Duration wait = std::min(target.deadline - SteadyNow(), kConnectWait);
    target.shard.lanes[0]->WaitForConnected(WallTimeOf(SteadyNow() + wait));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<StarClient>> StarClient::Join(const JobSpec& job, Options options) {
  const absl::Time deadline = SteadyNow() + job.join_deadline;
  v1::JoinRequest request;
  request.set_run_id(options.run_id);
  request.set_wire_version(kWireVersion);
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
    const JoinTarget target{.shard = shard,
                            .name = absl::StrCat("server ", shard.address, " (shard ", s, ")"),
                            .options = options,
                            .deadline = deadline,
                            .join_deadline = job.join_deadline};
    JoinWatch watch(target.name, shard.lanes[0], options.security.request_key, options.stall);
    const absl::StatusOr<uint64_t> job_id = JoinOne(target, request);
    if (!job_id.ok()) return GiveUp(job, std::move(options), {.why = job_id.status(), .joined_count = s});
    watch.SetJoined();
    shard.job_id = *job_id;
  }
  return absl::WrapUnique(new StarClient(job, std::move(options)));
}

// At the shards that this worker has joined, the job has begun. Without a message they would wait for its lanes until
// their deadlines are over, and then blame a rank that has done nothing. The coordinator tells the shards of an elastic
// run.
absl::Status StarClient::GiveUp(const JobSpec& job, Options options, const FailedJoin& failed) {
  if (failed.joined_count == 0 || options.superseded != nullptr) return failed.why;
  options.shards.resize(failed.joined_count);
  absl::WrapUnique(new StarClient(job, std::move(options)))->Abort(failed.why);
  return failed.why;
}

}  // namespace starring
