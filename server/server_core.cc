#include "server/server_core.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/host/host_port.h"
#include "common/host/machine_limits.h"
#include "common/host/peer_name.h"
#include "common/limits.h"
#include "common/status.h"
#include "common/steady_time.h"
#include "server/shard_memory.h"

namespace starring {
namespace {

// How often deadlines and signals are looked at.
constexpr std::chrono::milliseconds kTick(100);
// How long a server whose job is over waits for workers that have not taken their last answers.
constexpr std::chrono::seconds kLinger(5);

// As a worker asked for it.
std::chrono::milliseconds DeadlineOf(int64_t ms) {
  return absl::ToChronoMilliseconds(BoundedDeadline(absl::Milliseconds(ms)));
}

// Not a random choice that could change results: it tells this server process from another at the same address.
uint64_t DrawId() {
  std::random_device device;
  return static_cast<uint64_t>(device()) << 32 | device();
}

// Every lane has a track, as writes on two lanes overlap. Together they keep what kServerTracksMax full ones would.
int64_t LaneTraceEvents(int64_t track_count) {
  return std::min(kTraceEventsMax, std::max<int64_t>(kServerTracksMax * kTraceEventsMax / track_count, 1));
}

// `text` as one line that a terminal shows as it is. Refusals quote what a stranger sent.
std::string LogLine(absl::string_view text) {
  std::string line(text.substr(0, kLogLineBytesMax));
  std::replace_if(
      line.begin(), line.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
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
      lane_events_{[this](ExchangeLane* lane) { OnLaneAccepted(lane); },
                   [this](ExchangeLane* lane, const ReceivedMessage& message) { OnLaneMessage(lane, message); },
                   [this](ExchangeLane* lane, ExchangeLane::End end) { OnLaneGone(lane, end); }},
      check_service_({.shard = options_.shard,
                      .grpc_version = grpc::Version(),
                      .keep = [this](const std::string& peer) { acceptor_->Keep(peer); }}),
      track_(AddTrack(options_.trace, {.name = "shard"})),
      admission_(options_.security.token),
      rendezvous_(options_.shard, options_.shard_count, options_.run_id,
                  [this](const Agreement& agreement, int lanes) { return CheckAffordable(agreement, lanes); }),
      job_id_(DrawId()),
      refusals_([this](const std::string& line) { Log(line); }) {}

ParameterServer::Core::~Core() {
  if (!thread_.joinable()) return;
  acceptor_->Stop();
  // The polling thread takes the events that this causes, and shuts the queue down when nothing is left that could ask
  // it for another.
  server_->Shutdown(std::chrono::system_clock::now());
  server_is_down_ = true;
  thread_.join();
}

absl::Status ParameterServer::Core::Start() {
  if (options_.shard_count < 1 || options_.shard_count > kShardCountMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard count ", options_.shard_count, " is not between 1 and ", kShardCountMax));
  }
  if (options_.shard < 0 || options_.shard >= options_.shard_count) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard ", options_.shard, " is not below the shard count ", options_.shard_count));
  }
  RETURN_IF_ERROR(ParseHostPort(options_.listen).status(), "--listen");
  const bool is_exposed = !IsLoopbackHost(options_.listen.substr(0, options_.listen.rfind(':')));
  if (is_exposed && options_.security.token.empty() && !options_.insecure) {
    return absl::InvalidArgumentError(absl::StrCat(
        "listening on ", options_.listen,
        " without a secret would let anybody on the network join: give servers and "
        "workers --job_secret=FILE (deploy/launch --make_secret=FILE makes one), listen on 127.0.0.1, or accept it by "
        "--insecure"));
  }
  descriptors_max_ = RaiseDescriptorLimit(kDescriptorsMax);
  ASSIGN_OR_RETURN(acceptor_, ConnectionAcceptor::Listen(options_.listen));
  grpc::ServerBuilder builder;
  for (const auto& [name, value] : TransportArguments()) builder.AddChannelArgument(name, value);
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
  UpdateMemoryLimit();
  builder.SetResourceQuota(quota_);
  // gRPC listens on no port itself: it would accept connections without a limit.
  to_grpc_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      MakeServerCredentials(options_.security));
  builder.RegisterService(&service_);
  queue_ = builder.AddCompletionQueue();
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) {
    queue_->Shutdown();
    void* tag;
    bool ok;
    while (queue_->Next(&tag, &ok)) {
    }
    return absl::InternalError("gRPC cannot start a server");
  }
  if (is_exposed && !options_.security.tls.has_value()) {
    Log("connections are not encrypted: --tls on servers and workers encrypts them");
  }
  acceptor_->Start(kStrangerConnectionsMax, [this](int fd) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.fd = fd;
    to_grpc_->HandleNewConnection(&connection);
  });
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

absl::Status ParameterServer::Core::Wait() {
  const MutexLock lock(mutex_);
  ended_.Wait(mutex_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return result_.has_value(); });
  return *result_;
}

void ParameterServer::Core::Run() {
  ListenForJoin();
  ListenForStatus();
  ListenForCheck();
  ListenForLane();
  bool queue_is_down = false;
  Clock::time_point next_tick = Clock::now() + kTick;
  while (true) {
    void* tag;
    bool ok;
    const auto wait = std::chrono::duration_cast<std::chrono::microseconds>(next_tick - Clock::now());
    const auto event = queue_->AsyncNext(&tag, &ok, std::chrono::system_clock::now() + wait);
    if (event == grpc::CompletionQueue::SHUTDOWN) break;
    if (event == grpc::CompletionQueue::GOT_EVENT) static_cast<CompletionTag*>(tag)->Run(ok);
    if (const auto now = Clock::now(); now >= next_tick) {
      next_tick = now + kTick;
      Tick(now);
    }
    if (server_is_down_ && join_calls_.empty() && status_calls_.empty() && check_calls_.empty() && lanes_.empty() &&
        !queue_is_down) {
      queue_is_down = true;
      queue_->Shutdown();
    }
  }
  End(absl::CancelledError("the server was stopped"));
}

void ParameterServer::Core::Tick(Clock::time_point now) {
  check_service_.Forget(now);
  std::vector<JoinCall*> expired;
  for (const auto& [call, pending] : pending_joins_) {
    if (now >= pending.expires) expired.push_back(call);
  }
  for (JoinCall* call : expired) {
    const auto deadline = pending_joins_[call].deadline;
    pending_joins_.erase(call);
    const std::string missing = absl::StrCat(rendezvous_.DescribeMissing(), DescribeStrangers());
    rendezvous_.Leave(call->request().rank(), call->request().worker_id());
    // Rounded: what was left of the worker's deadline when it called.
    const double seconds = std::round(static_cast<double>(deadline.count()) / 100.0) / 10.0;
    call->Refuse(absl::DeadlineExceededError(absl::StrCat(missing, " within ", seconds, " s")));
  }
  CloseSilentLanes(now);
  if (job_ == nullptr && std::exchange(unheard_logged_, acceptor_->unheard().count) < acceptor_->unheard().count) {
    refusals_.Add(DescribeUnheard(), now);
  }
  if (job_ != nullptr) {
    job_->CheckDeadlines(now);
    EndIfTold(now);
    return;
  }
  absl::Status result;
  if (interrupted_) {
    result = absl::OkStatus();
  } else if (absl::FromChrono(now - started_) >= options_.join_deadline) {
    result = absl::DeadlineExceededError(absl::StrCat(
        rendezvous_.DescribeMissing(), " within ", absl::FormatDuration(options_.join_deadline), DescribeStrangers()));
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
  return absl::StrCat(unheard.count, unheard.count == 1 ? " connection" : " connections",
                      " ended before a request, the last from ", unheard.last_peer,
                      options_.security.tls.has_value()
                          ? ": start every worker with --tls and this server's --job_secret"
                          : ": so ends a worker's with --tls, which this server was not given");
}

std::string ParameterServer::Core::DescribeStrangers() const {
  if (acceptor_->unheard().count == 0) return admission_.DescribeRefusals();
  return absl::StrCat(admission_.DescribeRefusals(), " (", DescribeUnheard(), ")");
}

void ParameterServer::Core::CloseSilentLanes(Clock::time_point now) {
  for (const auto& [lane, owner] : lanes_) {
    if (lane->id.has_value() || lane->closing() || !lane->accepted_at().has_value()) continue;
    if (absl::FromChrono(now - *lane->accepted_at()) < options_.hello_deadline) continue;
    lane->Close(absl::DeadlineExceededError(
        absl::StrCat("no HELLO on this lane within ", absl::FormatDuration(options_.hello_deadline))));
  }
}

void ParameterServer::Core::End(absl::Status result) {
  // On the thread that makes the events, and before the process ends.
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

void ParameterServer::Core::ListenForLane() {
  auto lane = std::make_unique<ExchangeLane>(&lane_events_);
  lane->Accept(&service_, queue_.get());
  lanes_.emplace(lane.get(), std::move(lane));
}

void ParameterServer::Core::OnJoin(JoinCall* call) {
  ListenForJoin();
  const bool had_begun = rendezvous_.complete();
  const v1::JoinRequest& request = call->request();
  acceptor_->Heard(call->peer());
  absl::Status status = admission_.Check(request, call->peer());
  if (const auto bytes = static_cast<int64_t>(request.ByteSizeLong()); status.ok() && bytes > kJoinBytesMax) {
    status = absl::InvalidArgumentError(absl::StrCat("a Join of ", bytes, " bytes, at most ", kJoinBytesMax));
  }
  if (!status.ok()) {
    refusals_.Add(absl::StrCat("refused a request from ", call->peer(), ": ", std::string(status.message())),
                  Clock::now());
    call->Refuse(status);
    return;
  }
  status = rendezvous_.Join(request, PeerNameOfUri(call->peer()));
  if (!status.ok()) {
    refusals_.Add(absl::StrCat("refused rank ", request.rank(), ": ", std::string(status.message())), Clock::now());
    call->Refuse(status);
    return;
  }
  if (had_begun) {
    v1::JoinReply reply;
    reply.set_job_id(job_id_);
    call->Answer(reply);
    return;
  }
  acceptor_->Keep(call->peer());  // its worker waits there, perhaps for hours
  acceptor_->SetLimit(rendezvous_.agreement().world_size * rendezvous_.lanes() + kStrangerConnectionsMax);
  DropOlderJoin(request);
  const auto deadline = DeadlineOf(request.join_deadline_ms());
  pending_joins_[call] = {.expires = Clock::now() + deadline, .deadline = deadline};
  if (rendezvous_.complete()) {
    BeginJob();
  } else {
    Log(absl::StrCat("rank ", request.rank(), " joined; ", rendezvous_.DescribeMissing()));
  }
}

// A worker that joins again has lost the call before. When gRPC finds that out, later, the worker must not be taken for
// gone; and calls that nobody waits for must not pile up.
void ParameterServer::Core::DropOlderJoin(const v1::JoinRequest& request) {
  for (const auto& [call, pending] : pending_joins_) {
    if (call->request().rank() != request.rank() || call->request().worker_id() != request.worker_id()) continue;
    JoinCall* const older = call;
    pending_joins_.erase(older);
    older->Refuse(absl::AbortedError("the worker has joined again"));
    return;
  }
}

absl::Status ParameterServer::Core::CheckAffordable(const Agreement& agreement, int lanes) {
  // Now, and not when the job begins: by then the other servers may have taken their part of what was free.
  memory_bytes_max_ = UpdateMemoryLimit();
  RETURN_IF_ERROR(CheckShardMemory(agreement, options_.shard, options_.shard_count, memory_bytes_max_));
  const int64_t needed = ServerDescriptors(int64_t{agreement.world_size} * lanes);
  if (needed <= descriptors_max_) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(agreement.world_size, " workers with ", lanes, " lanes each need ", needed,
                   " descriptors at this server, which may open ", descriptors_max_,
                   ": raise the hard limit (ulimit -Hn, LimitNOFILE), or give the workers fewer --lanes"));
}

int64_t ParameterServer::Core::UpdateMemoryLimit() {
  int64_t bytes = options_.memory_bytes_max;
  if (bytes == 0) {
    const absl::StatusOr<int64_t> available = options_.available_memory();
    // The servers of one job begin at the same time, and each finds the same memory free.
    const int servers = std::min(CountProcessesOfThisProgram(), options_.shard_count);
    bytes = available.ok() ? *available / servers : std::numeric_limits<int64_t>::max();
  }
  // What gRPC holds of messages counts too: it slows down, then drops streams, before the machine runs out of memory.
  quota_.Resize(static_cast<size_t>(bytes));
  return bytes;
}

void ParameterServer::Core::OnJoinGone(JoinCall* call) {
  if (pending_joins_.erase(call) > 0) rendezvous_.Leave(call->request().rank(), call->request().worker_id());
  join_calls_.erase(call);
}

void ParameterServer::Core::BeginJob() {
  const Agreement& agreement = rendezvous_.agreement();
  absl::StatusOr<std::unique_ptr<ShardJob>> job =
      ShardJob::Create({.agreement = agreement,
                        .shard = options_.shard,
                        .shard_count = options_.shard_count,
                        .memory_bytes_max = memory_bytes_max_,
                        .exchange_deadline = DeadlineOf(rendezvous_.exchange_deadline_ms()),
                        .join_deadline = DeadlineOf(rendezvous_.join_deadline_ms()),
                        .send =
                            [this](Answer answer) {
                              const auto found = lanes_by_id_.find(answer.to);
                              if (found != lanes_by_id_.end()) found->second->Send(std::move(answer));
                            },
                        .now = Clock::now(),
                        .stall_times = {.report_after = std::chrono::milliseconds(rendezvous_.stall_report_ms())},
                        .log = [this](const std::string& line) { Log(line); },
                        .track = track_,
                        .metrics = options_.metrics});
  v1::JoinReply reply;
  reply.set_job_id(job_id_);
  for (const auto& [call, pending] : pending_joins_) {
    if (job.ok()) {
      call->Answer(reply);
    } else {
      call->Refuse(job.status());
    }
  }
  pending_joins_.clear();
  if (!job.ok()) {
    begin_failure_ = job.status();
    End(job.status());
    return;
  }
  job_ = *std::move(job);
  check_service_.Close(job_->world_size());
  Log(absl::StrCat("all ", agreement.world_size, " workers joined: ", agreement.buckets.element_count(),
                   " elements in ", agreement.buckets.bucket_count(), " buckets, from step ", agreement.first_step));
}

void ParameterServer::Core::OnStatus(StatusCall* call) {
  ListenForStatus();
  acceptor_->Heard(call->peer());
  if (const absl::Status status = admission_.Check(call->request(), call->peer()); !status.ok()) {
    call->Refuse(status);
    return;
  }
  v1::GetStatusReply reply;
  if (job_ != nullptr) {
    job_->Describe(&reply);
  } else if (!begin_failure_.ok()) {
    reply.set_state(v1::GetStatusReply::FAILED);
    reply.set_message(std::string(begin_failure_.message()));
  } else {
    reply.set_message(rendezvous_.DescribeMissing());
    if (rendezvous_.anybody()) {
      reply.set_world_size(rendezvous_.agreement().world_size);
      reply.set_first_step(rendezvous_.agreement().first_step);
      for (int rank = 0; rank < reply.world_size(); ++rank) {
        v1::GetStatusReply::Worker* worker = reply.add_workers();
        worker->set_rank(rank);
        worker->set_joined(rendezvous_.Joined(rank));
      }
    }
  }
  reply.set_run_id(rendezvous_.run_id());
  reply.set_shard(options_.shard);
  reply.set_shard_count(options_.shard_count);
  reply.set_uptime_seconds(std::chrono::duration<double>(Clock::now() - started_).count());
  call->Answer(reply);
}

void ParameterServer::Core::OnCheck(CheckCall* call) {
  ListenForCheck();
  acceptor_->Heard(call->peer());
  const absl::Status admitted = admission_.Check(call->request(), call->peer());
  const absl::StatusOr<v1::CheckReply> reply =
      admitted.ok() ? check_service_.Answer(call->request(), call->peer(), Clock::now()) : admitted;
  if (reply.ok()) {
    call->Answer(*reply);
  } else {
    call->Refuse(reply.status());
  }
}

void ParameterServer::Core::OnLaneMessage(ExchangeLane* lane, const ReceivedMessage& message) {
  if (message.fields.kind() == v1::ExchangeMessage::HELLO) {
    OnHello(lane, message.fields);
  } else if (!lane->id.has_value()) {
    lane->Close(absl::FailedPreconditionError("the first message of a lane must be HELLO"));
  } else {
    job_->OnMessage(*lane->id, message, Clock::now());
  }
}

void ParameterServer::Core::OnHello(ExchangeLane* lane, const v1::ExchangeMessage& hello) {
  if (job_ == nullptr || hello.job_id() != job_id_ || lane->id.has_value()) {
    lane->Close(absl::FailedPreconditionError(
        absl::StrCat("the server of shard ", options_.shard, " does not know this job: has it been restarted?")));
    return;
  }
  if (hello.rank() < 0 || hello.rank() >= job_->world_size() || hello.lane() < 0 || hello.lane() >= kLanesMax) {
    lane->Close(absl::InvalidArgumentError(absl::StrCat("rank ", hello.rank(), ", lane ", hello.lane(), ": at most ",
                                                        job_->world_size(), " ranks and ", kLanesMax, " lanes")));
    return;
  }
  const LaneId id{.rank = hello.rank(), .lane = hello.lane()};
  lane->id = id;
  ForgetSilentLane(lane);
  acceptor_->Keep(lane->peer());
  if (options_.trace != nullptr) {
    TraceTrack*& track = tracks_[id];
    if (track == nullptr) {
      const int64_t track_count = static_cast<int64_t>(job_->world_size()) * rendezvous_.lanes();
      track = AddTrack(options_.trace, {.name = absl::StrCat("lane ", id.lane, " of worker ", id.rank),
                                        .events_max = LaneTraceEvents(track_count)});
    }
    lane->track = track;
  }
  ExchangeLane*& current = lanes_by_id_[id];
  ExchangeLane* const replaced = std::exchange(current, lane);
  if (replaced != nullptr) {
    // The worker has a new connection and this server has not noticed that the old one is dead. What may still come
    // from the old one is not listened to.
    replaced->id.reset();
    replaced->Cancel();
  }
  job_->OnLaneOpen(id);
  UpdateSeatTime();
}

// gRPC counts streams only once the client has acknowledged that there is a limit, which a stranger need not do.
void ParameterServer::Core::OnLaneAccepted(ExchangeLane* lane) {
  ListenForLane();
  const std::string peer = lane->peer();
  std::set<ExchangeLane*>& silent = silent_lanes_[peer];
  silent.insert(lane);
  if (std::ssize(silent) > kStreamsPerConnectionMax) acceptor_->CutStranger(peer);
}

void ParameterServer::Core::UpdateSeatTime() {
  const bool is_whole = std::ssize(lanes_by_id_) >= int64_t{job_->world_size()} * rendezvous_.lanes();
  acceptor_->SetSeatTime(std::chrono::milliseconds(is_whole ? kStrangerSeatMs : 0));
}

void ParameterServer::Core::ForgetSilentLane(ExchangeLane* lane) {
  const auto found = silent_lanes_.find(lane->peer());
  if (found == silent_lanes_.end()) return;
  found->second.erase(lane);
  if (found->second.empty()) silent_lanes_.erase(found);
}

void ParameterServer::Core::OnLaneGone(ExchangeLane* lane, ExchangeLane::End end) {
  ForgetSilentLane(lane);
  if (lane->id.has_value()) {
    lanes_by_id_.erase(*lane->id);
    UpdateSeatTime();
    job_->OnLaneClosed(*lane->id, Clock::now());
    if (end == ExchangeLane::End::kOrderly && job_->state() != ShardJob::State::kRunning) told_.insert(lane->id->rank);
  }
  lanes_.erase(lane);
  if (job_ != nullptr) EndIfTold(Clock::now());
}

void ParameterServer::Core::EndIfTold(Clock::time_point now) {
  if (job_->state() == ShardJob::State::kRunning) return;
  if (!job_over_since_.has_value()) {
    job_over_since_ = now;
    Log(job_->status().ok() ? std::string("all workers have finished")
                            : absl::StrCat("the job failed: ", std::string(job_->status().message())));
  }
  const bool all_told = lanes_by_id_.empty() && static_cast<int>(told_.size()) == job_->world_size();
  if (all_told || now - *job_over_since_ > kLinger) End(job_->status());
}

void ParameterServer::Core::Log(const std::string& line) const {
  if (options_.log != nullptr) options_.log(LogLine(line));
}

}  // namespace starring
