#include "server/server_core.h"

#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/nonce.h"
#include "common/base/printable.h"
#include "common/base/status.h"
#include "common/host/machine_limits.h"
#include "common/network/address.h"

namespace starring {
namespace {

// How often deadlines and Interrupt are looked at.
constexpr std::chrono::milliseconds kTick(100);
// How long a server whose job is over waits for workers that have not taken their last answers: a worker that is gone
// never takes them.
constexpr std::chrono::seconds kLinger(5);
// Between two lines about connections that ended before a request.
constexpr std::chrono::minutes kUnheardPause(1);

// `text` as one short line. Refusals quote strangers.
std::string LogLine(absl::string_view text) {
  std::string line = Printable(text.substr(0, kLogLineBytesMax));
  if (text.size() > line.size()) absl::StrAppend(&line, "... (", text.size() - line.size(), " bytes more)");
  return line;
}

}  // namespace

ParameterServer::Core::Core(Options options)
    : options_(std::move(options)),
      join_events_{[this](JoinCall* call) { OnJoin(call); }, [this](JoinCall* call) { OnJoinGone(call); }},
      status_events_{[this](StatusCall* call) { OnStatus(call); },
                     [this](StatusCall* call) { status_calls_.erase(call); }},
      check_events_{[this](CheckCall* call) { OnCheck(call); }, [this](CheckCall* call) { check_calls_.erase(call); }},
      challenge_events_{[this](ChallengeCall* call) { OnChallenge(call); },
                        [this](ChallengeCall* call) { challenge_calls_.erase(call); }},
      lane_events_{[this](ExchangeLane* lane) { OnLaneAccepted(lane); },
                   [this](ExchangeLane* lane, const ReceivedMessage& message) { OnLaneMessage(lane, message); },
                   [this](ExchangeLane* lane, ExchangeLane::End end) { OnLaneGone(lane, end); }},
      check_service_({.shard = options_.shard,
                      .grpc_version = grpc::Version(),
                      .keep = [this](const std::string& peer) { acceptor_->Keep(peer); }}),
      track_(AddTrack(options_.trace, {.name = "shard"})),
      lane_tracks_(options_.trace),
      admission_(options_.security.request_key, options_.shard),
      rendezvous_(std::in_place, options_.shard, options_.shard_count, options_.run_id,
                  [this](const Agreement& agreement, int lanes) { return CheckAffordable(agreement, lanes); }),
      job_id_(DrawNonce()),
      refusals_([this](const std::string& line) { Log(line); }) {}

ParameterServer::Core::~Core() {
  if (!thread_.joinable()) return;
  // The acceptor stops first: it would go on handing sockets to a server that is shutting down.
  acceptor_->Stop();
  // Shutdown causes events, and each may ask the queue for another one. So the polling thread shuts the queue down
  // itself when no call and no lane is left; a queue that is shut down earlier aborts the process.
  server_->Shutdown(std::chrono::system_clock::now());
  server_is_down_ = true;
  thread_.join();
}

absl::Status ParameterServer::Core::CheckOptions() const {
  if (options_.shard_count < 1 || options_.shard_count > kShardCountMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard count ", options_.shard_count, " is not between 1 and ", kShardCountMax));
  }
  if (options_.shard < 0 || options_.shard >= options_.shard_count) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard ", options_.shard, " is not below the shard count ", options_.shard_count));
  }
  RETURN_IF_ERROR(ParseHostPort(options_.listen).status(), "--listen");
  if (!options_.elastic.announce.empty()) {
    RETURN_IF_ERROR(ParseHostPort(options_.elastic.announce).status(), "--announce");
  }
  if (is_exposed() && options_.security.request_key.empty() && !options_.insecure) {
    return absl::InvalidArgumentError(absl::StrCat(
        "listening on ", options_.listen,
        " without a secret would let everyone on the network join: give servers and "
        "workers --job_secret=FILE (deploy/launch --make_secret=FILE makes one), listen on 127.0.0.1, or accept it by "
        "--insecure"));
  }
  return absl::OkStatus();
}

bool ParameterServer::Core::is_exposed() const {
  return !IsLoopbackHost(options_.listen.substr(0, options_.listen.rfind(':')));
}

absl::Status ParameterServer::Core::Start() {
  RETURN_IF_ERROR(CheckOptions());
  // A connection costs two descriptors, and the usual soft limit is 1,024.
  descriptors_max_ = RaiseDescriptorLimit(kDescriptorsMax);
  // A wrong address is found before anything of gRPC exists. Connections wait in the kernel until the acceptor is
  // started below.
  // A shard of an elastic run that is started again needs the port that it had. Workers wait as long for it.
  constexpr absl::Duration kPortPatience = absl::Seconds(60);
  const absl::Duration patience = is_elastic() ? std::min(options_.join_deadline, kPortPatience) : absl::ZeroDuration();
  ASSIGN_OR_RETURN(acceptor_, ConnectionAcceptor::Listen({.listen = options_.listen,
                                                          .ports = options_.ports,
                                                          .patience = absl::ToChronoMilliseconds(patience),
                                                          .say = [this](const std::string& line) { Log(line); }}));
  grpc::ServerBuilder builder;
  for (const auto& [name, value] : TransportArguments()) builder.AddChannelArgument(name, value);
  // Each stream costs memory before its first message has arrived.
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsPerConnectionMax);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                             static_cast<int>(absl::ToInt64Milliseconds(options_.hello_deadline)));
  // A message that is small on the wire must not be large in memory. No worker compresses.
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder.SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  builder.SetMaxReceiveMessageSize(static_cast<int>(kMessageBytesMax));
  builder.SetMaxSendMessageSize(static_cast<int>(kMessageBytesMax));
  // There is no job yet: what is free now bounds what strangers' messages may take.
  UpdateMemoryLimit();
  builder.SetResourceQuota(quota_);
  // gRPC does not listen itself: it would accept connections without a limit.
  to_grpc_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      MakeServerCredentials(options_.security));
  builder.RegisterService(&service_);
  if (is_elastic() && options_.shard == 0) {
    MakeCoordinator();
    builder.RegisterService(coordinator_->service());
  }
  queue_ = builder.AddCompletionQueue();
  server_ = builder.BuildAndStart();
  // gRPC requires that a queue is drained before it is destroyed.
  if (server_ == nullptr) {
    queue_->Shutdown();
    void* tag;
    bool ok;
    while (queue_->Next(&tag, &ok)) {
    }
    return absl::InternalError("gRPC cannot start a server");
  }
  if (is_exposed() && !options_.security.tls.has_value()) {
    Log("connections are not encrypted: --tls on servers and workers encrypts them");
  }
  // The first Join tells how many connections the job has (OnJoin). Until then all are strangers.
  acceptor_->Start(kStrangerConnectionsMax, [this](int fd) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.fd = fd;
    to_grpc_->HandleNewConnection(&connection);
  });
  if (is_elastic()) MakeMember();
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

absl::Status ParameterServer::Core::Wait() {
  const MutexLock lock(mutex_);
  ended_.Wait(mutex_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return result_.has_value(); });
  return *result_;
}

void ParameterServer::Core::Run() {
  // One call of each kind is always open: every handler begins by asking gRPC for the next one.
  ListenForJoin();
  ListenForStatus();
  ListenForCheck();
  ListenForChallenge();
  ListenForLane();
  if (coordinator_ != nullptr) coordinator_->Listen(queue_.get());
  bool queue_is_down = false;
  Clock::time_point next_tick = Clock::now() + kTick;
  while (true) {
    void* tag;
    bool ok;
    const auto wait = std::chrono::duration_cast<std::chrono::microseconds>(next_tick - Clock::now());
    const auto event = queue_->AsyncNext(&tag, &ok, std::chrono::system_clock::now() + wait);
    if (event == grpc::CompletionQueue::SHUTDOWN) break;
    if (event == grpc::CompletionQueue::GOT_EVENT) static_cast<CompletionTag*>(tag)->Run(ok);
    // The clock is looked at after every event, not only when there is none: a busy server must keep its deadlines,
    // too.
    if (const auto now = Clock::now(); now >= next_tick) {
      next_tick = now + kTick;
      Tick(now);
    }
    if (server_is_down_ && !has_calls() && !queue_is_down) {
      queue_is_down = true;
      queue_->Shutdown();
    }
  }
  End(absl::CancelledError("the server was stopped"));
}

bool ParameterServer::Core::has_calls() const {
  return !join_calls_.empty() || !status_calls_.empty() || !check_calls_.empty() || !challenge_calls_.empty() ||
         !lanes_.empty() || (coordinator_ != nullptr && !coordinator_->is_idle());
}

void ParameterServer::Core::Tick(Clock::time_point now) {
  check_service_.Forget(now);
  // The calls are collected first, because the loop below changes the map.
  std::vector<JoinCall*> expired;
  for (const auto& [call, pending] : pending_joins_) {
    if (now >= pending.expires) expired.push_back(call);
  }
  for (JoinCall* call : expired) {
    const auto deadline = pending_joins_[call].deadline;
    pending_joins_.erase(call);
    // This comes before the rank leaves: it is not among the missing ones itself. Its call is no longer pending, so
    // OnJoinGone does not let the worker leave a second time, when it may have come back.
    const std::string missing = absl::StrCat(rendezvous_->DescribeMissing(), DescribeStrangers());
    // The rank is free again: its worker may come back with other flags.
    rendezvous_->Leave(call->request().rank(), call->request().worker_id());
    // The number is rounded, because it is what was left of the worker's deadline when it called.
    const double seconds = std::round(static_cast<double>(deadline.count()) / 100.0) / 10.0;
    call->Refuse(absl::DeadlineExceededError(absl::StrCat(missing, " within ", seconds, " s")));
  }
  CloseSilentLanes(now);
  // While workers are missing, such a connection is probably one of theirs, with another --tls or --job_secret.
  // Those of an elastic run's members end, too, before a server that is started again has heard them.
  // Such a worker tries again twice a second.
  const int64_t unheard = acceptor_->unheard().count;
  const bool is_time = unheard_logged_ == 0 || now - unheard_said_ >= kUnheardPause;
  if (job_ == nullptr && !is_elastic() && unheard > unheard_logged_ && is_time) {
    unheard_logged_ = unheard;
    unheard_said_ = now;
    refusals_.Add(DescribeUnheard(), now);
  }
  if (job_ != nullptr) {
    job_->CheckDeadlines(JobNow());
    EndIfTold(now);
  }
  if (is_elastic()) return TickElastic(now);
  if (job_ != nullptr) return;
  absl::Status result;
  // A running job is not interrupted: its workers finish, and the server with them.
  if (interrupted_) {
    result = absl::OkStatus();
  } else if (absl::FromChrono(now - started_) >= options_.join_deadline) {
    result = absl::DeadlineExceededError(absl::StrCat(
        rendezvous_->DescribeMissing(), " within ", absl::FormatDuration(options_.join_deadline), DescribeStrangers()));
  } else {
    return;
  }
  const absl::Status refusal = result.ok() ? absl::UnavailableError("the server was asked to stop") : result;
  for (const auto& [call, pending] : pending_joins_) call->Refuse(refusal);
  pending_joins_.clear();
  End(result);
}

std::string ParameterServer::Core::DescribeUnheard() const {
  const ConnectionAcceptor::Unheard unheard = acceptor_->unheard();
  const char* const way_out =
      options_.security.tls.has_value()       ? ": start every worker with --tls and this server's --job_secret"
      : options_.security.request_key.empty() ? ": a worker with --tls does so, and this server was started without"
                                              : ": a worker with --tls does so, or with another --job_secret; this "
                                                "server was started without --tls";
  return absl::StrCat(unheard.count, unheard.count == 1 ? " connection" : " connections",
                      " ended before a request, the last from ", unheard.last_peer, way_out);
}

std::string ParameterServer::Core::DescribeStrangers() const {
  if (acceptor_->unheard().count == 0) return admission_.DescribeRefusals();
  return absl::StrCat(admission_.DescribeRefusals(), " (", DescribeUnheard(), ")");
}

void ParameterServer::Core::CloseSilentLanes(Clock::time_point now) {
  for (const auto& [lane, owner] : lanes_) {
    // Closing only begins here; OnLaneGone takes the lane out of the map, from another event.
    if (lane->id.has_value() || lane->closing() || !lane->accepted_at().has_value()) continue;
    if (absl::FromChrono(now - *lane->accepted_at()) < options_.hello_deadline) continue;
    lane->Close(absl::DeadlineExceededError(
        absl::StrCat("no HELLO on this lane within ", absl::FormatDuration(options_.hello_deadline))));
  }
}

void ParameterServer::Core::End(absl::Status result) {
  // The trace is written here, because this thread adds its events, and because the process may end as soon as Wait
  // returns.
  if (options_.trace != nullptr && !std::exchange(trace_written_, true)) {
    if (const absl::Status status = options_.trace->Write(); !status.ok()) {
      Log(absl::StrCat("no trace: ", std::string(status.message())));
    }
  }
  const MutexLock lock(mutex_);
  if (!result_.has_value()) result_ = std::move(result);
  ended_.NotifyAll();
}

void ParameterServer::Core::ListenForJoin() {
  auto call =
      std::make_unique<JoinCall>(&join_events_, [this](auto* context, auto* request, auto* responder, void* tag) {
        service_.RequestJoin(context, request, responder, queue_.get(), queue_.get(), tag);
      });
  join_calls_.emplace(call.get(), std::move(call));
}

void ParameterServer::Core::ListenForStatus() {
  auto call =
      std::make_unique<StatusCall>(&status_events_, [this](auto* context, auto* request, auto* responder, void* tag) {
        service_.RequestGetStatus(context, request, responder, queue_.get(), queue_.get(), tag);
      });
  status_calls_.emplace(call.get(), std::move(call));
}

void ParameterServer::Core::ListenForCheck() {
  auto call =
      std::make_unique<CheckCall>(&check_events_, [this](auto* context, auto* request, auto* responder, void* tag) {
        service_.RequestCheck(context, request, responder, queue_.get(), queue_.get(), tag);
      });
  check_calls_.emplace(call.get(), std::move(call));
}

void ParameterServer::Core::ListenForChallenge() {
  auto call = std::make_unique<ChallengeCall>(
      &challenge_events_, [this](auto* context, auto* request, auto* responder, void* tag) {
        service_.RequestChallenge(context, request, responder, queue_.get(), queue_.get(), tag);
      });
  challenge_calls_.emplace(call.get(), std::move(call));
}

void ParameterServer::Core::ListenForLane() {
  auto lane = std::make_unique<ExchangeLane>(&lane_events_);
  lane->Accept(&service_, queue_.get());
  lanes_.emplace(lane.get(), std::move(lane));
}

void ParameterServer::Core::EndIfTold(Clock::time_point now) {
  if (job_->state() == ShardJob::State::kRunning) return;
  if (is_elastic()) {
    // The coordinator decides what a generation's end means for the run.
    if (job_->status().ok()) {
      member_->SetCounted(job_->counted());
      member_->SetFinished();
    } else {
      member_->SetTrouble(std::string(job_->status().message()), job_->blamed());
    }
    return;
  }
  if (!job_over_since_.has_value()) {
    job_over_since_ = now;
    Log(job_->status().ok() ? std::string("all workers have finished")
                            : absl::StrCat("the job failed: ", std::string(job_->status().message())));
  }
  // A worker has its last answers when its stream has ended in good order. While any of its lanes is open, answers may
  // still be on their way.
  const bool all_told = lanes_by_id_.empty() && static_cast<int>(acknowledged_ranks_.size()) == job_->world_size();
  if (all_told || now - *job_over_since_ > kLinger) End(job_->status());
}

void ParameterServer::Core::Log(const std::string& line) const {
  if (options_.log != nullptr) options_.log(LogLine(line));
}

}  // namespace starring
