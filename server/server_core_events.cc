// How a server handles calls of Join, GetStatus and Check, and Exchange streams that open, bring a message or end.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/base/steady_time.h"
#include "common/host/machine_limits.h"
#include "common/network/address.h"
#include "server/server_core.h"

namespace starring {
namespace {

// For a server that only tells the state of a job over TCP.
absl::Status HasNoWorkers() {
  return absl::FailedPreconditionError(
      "this server meets its workers at --rendezvous, and here answers GetStatus alone: start the workers with "
      "--transport=tcp");
}

// A deadline as a worker asked for it, within bounds.
std::chrono::milliseconds DeadlineOf(int64_t ms) {
  return absl::ToChronoMilliseconds(BoundedDeadline(absl::Milliseconds(ms)));
}

}  // namespace

void ParameterServer::Core::OnJoin(JoinCall* call) {
  ListenForJoin();
  // A Join after the job has begun comes from a worker that lost the answer to its first one.
  const bool had_begun = rendezvous_->complete();
  const v1::JoinRequest& request = call->request();
  // A refused request counts as well: the peer speaks the protocol, so TLS is not what is wrong with it.
  acceptor_->Heard(call->peer());
  absl::Status status = admission_.Check(kJoinMethod, request, call->peer());
  if (const auto bytes = static_cast<int64_t>(request.ByteSizeLong()); status.ok() && bytes > kJoinBytesMax) {
    status = absl::InvalidArgumentError(absl::StrCat("a Join of ", bytes, " bytes, at most ", kJoinBytesMax));
  }
  if (status.ok() && options_.describe != nullptr) status = HasNoWorkers();
  if (!status.ok()) {
    refusals_.Add(absl::StrCat("refused a request from ", call->peer(), ": ", std::string(status.message())),
                  Clock::now());
    call->Refuse(status);
    return;
  }
  if (is_elastic()) status = CheckGeneration(request);
  if (!status.ok()) {
    call->Refuse(status);
    return;
  }
  status = rendezvous_->Join(request, PeerNameOfUri(call->peer()));
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
  acceptor_->Keep(call->peer());  // the worker waits in this call, perhaps for hours
  // The job is known now, and with it the number of its connections.
  acceptor_->SetLimit(rendezvous_->agreement().world_size * rendezvous_->lanes() + kStrangerConnectionsMax);
  DropOlderJoin(request);
  const auto deadline = DeadlineOf(request.join_deadline_ms());
  pending_joins_[call] = {.expires = Clock::now() + deadline, .deadline = deadline};
  if (rendezvous_->complete()) {
    BeginJob();
  } else {
    Log(absl::StrCat("rank ", request.rank(), " joined; ", rendezvous_->DescribeMissing()));
  }
}

// A worker that joins again has lost its earlier call. gRPC may notice that later, and then the worker must not be
// taken for gone. Calls whose client is gone must not pile up either.
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
  // The memory is counted now and not when the job begins: by then other servers may have taken their part of it.
  memory_bytes_max_ = UpdateMemoryLimit();
  RETURN_IF_ERROR(CheckMemory(agreement));
  const int64_t needed = ServerDescriptors(int64_t{agreement.world_size} * lanes + acceptor_->member_count());
  if (needed <= descriptors_max_) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(agreement.world_size, " workers with --lanes=", lanes, " need ", needed,
                   " descriptors at this server, which may open ", descriptors_max_,
                   ": raise the hard limit (ulimit -Hn, LimitNOFILE), or lower --lanes"));
}

absl::Status ParameterServer::Core::CheckMemory(const Agreement& agreement) const {
  return CheckShardMemory(agreement, options_.shard, options_.shard_count, memory_bytes_max_,
                          is_elastic() ? SnapshotStore::kAliveMax : 0);
}

int64_t ParameterServer::Core::CountMemory() const {
  if (options_.memory_bytes_max != 0) return options_.memory_bytes_max;
  const absl::StatusOr<int64_t> available = options_.available_memory();
  // The servers of one job begin at the same time, and each finds the same memory free.
  const int servers = std::min(options_.servers_here(), options_.shard_count);
  // Snapshots of the generations before are among those that CheckMemory counts, and their memory is not free.
  const bool has_snapshots = member_ != nullptr && member_->has_learned();
  const int64_t held = has_snapshots ? member_->snapshots().bytes_in_memory() : 0;
  return available.ok() ? *available / servers + held : std::numeric_limits<int64_t>::max();
}

int64_t ParameterServer::Core::UpdateMemoryLimit() {
  const int64_t bytes = CountMemory();
  // gRPC's own memory for messages counts too: near the limit gRPC slows down, then drops streams, before the machine
  // runs out of memory.
  quota_.Resize(static_cast<size_t>(bytes));
  return bytes;
}

void ParameterServer::Core::OnJoinGone(JoinCall* call) {
  // An answered call ends, too, and its worker has not left.
  if (pending_joins_.erase(call) > 0) rendezvous_->Leave(call->request().rank(), call->request().worker_id());
  join_calls_.erase(call);
}

absl::StatusOr<std::unique_ptr<ShardJob>> ParameterServer::Core::CreateJob() {
  // A worker that asked for more lanes than those before made CheckAffordable count again, and there may be less now.
  RETURN_IF_ERROR(CheckMemory(rendezvous_->agreement()));
  return ShardJob::Create({.agreement = rendezvous_->agreement(),
                           .shard = options_.shard,
                           .shard_count = options_.shard_count,
                           .exchange_deadline = DeadlineOf(rendezvous_->exchange_deadline_ms()),
                           .join_deadline = DeadlineOf(rendezvous_->join_deadline_ms()),
                           .send =
                               [this](Answer answer) {
                                 // An answer to a lane that is gone is dropped. The worker repeats its request on the
                                 // next lane, and gets the answer there.
                                 const auto found = lanes_by_id_.find(answer.to);
                                 if (found != lanes_by_id_.end()) found->second->Send(std::move(answer));
                               },
                           .now = JobNow(),
                           .stall_times = {.report_after = std::chrono::milliseconds(rendezvous_->stall_report_ms())},
                           .log = [this](const std::string& line) { Log(line); },
                           .track = track_,
                           .metrics = options_.metrics,
                           .snapshots = is_elastic() ? &member_->snapshots() : nullptr,
                           .snapshot_every = generation_.snapshot_every(),
                           .steps_per_epoch = is_elastic() ? member_->terms().steps_per_epoch() : 1,
                           .start = start_});
}

void ParameterServer::Core::BeginJob() {
  absl::StatusOr<std::unique_ptr<ShardJob>> job = CreateJob();
  v1::JoinReply reply;
  reply.set_job_id(job_id_);
  // A worker may open lanes as soon as it has this answer. Their HELLO waits in the queue until this function has set
  // job_: the same thread handles both.
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
    if (is_elastic()) {
      member_->SetTrouble(std::string(job.status().message()));
    } else {
      End(job.status());
    }
    return;
  }
  job_ = *std::move(job);
  worker_lanes_ = std::max(worker_lanes_, rendezvous_->lanes());
  start_.reset();
  check_service_.Close(job_->world_size());
  const Agreement& agreement = rendezvous_->agreement();
  Log(absl::StrCat("all ", agreement.world_size, " workers joined: ", agreement.buckets.element_count(),
                   " elements in ", agreement.buckets.bucket_count(), " buckets, from step ", agreement.first_step));
}

void ParameterServer::Core::OnStatus(StatusCall* call) {
  ListenForStatus();
  acceptor_->Heard(call->peer());
  // Strangers must not learn the state of a job either.
  if (const absl::Status status = admission_.Check(kGetStatusMethod, call->request(), call->peer()); !status.ok()) {
    call->Refuse(status);
    return;
  }
  v1::GetStatusReply reply;
  if (options_.describe != nullptr) {
    reply = options_.describe();
  } else if (job_ != nullptr) {
    job_->Describe(&reply);
  } else if (!begin_failure_.ok()) {
    reply.set_state(v1::GetStatusReply::FAILED);
    reply.set_message(std::string(begin_failure_.message()));
  } else {
    reply.set_message(rendezvous_->DescribeMissing());
    if (rendezvous_->has_workers()) {
      reply.set_world_size(rendezvous_->agreement().world_size);
      reply.set_first_step(rendezvous_->agreement().first_step);
      for (int rank = 0; rank < reply.world_size(); ++rank) {
        v1::GetStatusReply::Worker* worker = reply.add_workers();
        worker->set_rank(rank);
        worker->set_joined(rendezvous_->Joined(rank));
      }
    }
  }
  reply.set_run_id(rendezvous_->run_id());
  reply.set_shard(options_.shard);
  reply.set_shard_count(options_.shard_count);
  reply.set_uptime_seconds(std::chrono::duration<double>(Clock::now() - started_).count());
  call->Answer(reply);
}

void ParameterServer::Core::OnCheck(CheckCall* call) {
  ListenForCheck();
  acceptor_->Heard(call->peer());
  absl::Status admitted = admission_.Check(kCheckMethod, call->request(), call->peer());
  if (admitted.ok() && options_.describe != nullptr) admitted = HasNoWorkers();
  const absl::StatusOr<v1::CheckReply> reply =
      admitted.ok() ? check_service_.Answer(call->request(), call->peer(), Clock::now()) : admitted;
  if (reply.ok()) {
    call->Answer(*reply);
  } else {
    call->Refuse(reply.status());
  }
}

// A client that asks for nothing else stays a stranger: the acceptor is not told about it (DescribeUnheard).
void ParameterServer::Core::OnChallenge(ChallengeCall* call) {
  ListenForChallenge();
  const absl::StatusOr<v1::ChallengeReply> reply = admission_.Answer(call->request(), call->peer());
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
    // A lane has an id only after a HELLO, which is refused while there is no job.
    job_->OnMessage(*lane->id, message, JobNow());
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
  // The peer is a worker: its stream and its connection no longer count as a stranger's.
  ForgetSilentLane(lane);
  acceptor_->Keep(lane->peer());
  lane->track = lane_tracks_.TrackOf(id, int64_t{job_->world_size()} * rendezvous_->lanes());
  // A lane that the worker opened again replaces the one before.
  ExchangeLane*& current = lanes_by_id_[id];
  ExchangeLane* const replaced = std::exchange(current, lane);
  if (replaced != nullptr) {
    // The worker has a new connection, and this server has not noticed yet that the old one is dead. Messages that
    // still arrive on the old one must not count.
    replaced->id.reset();
    replaced->Cancel();
  }
  // The worker waits for this answer: what it sent before the acceptor knows it would count as a stranger's.
  v1::ExchangeMessage here;
  here.set_kind(v1::ExchangeMessage::HERE);
  lane->Send({.to = id, .fields = std::move(here)});
  job_->OnLaneOpen(id);
  UpdateSeatTime();
}

// gRPC enforces its limit of streams only after the client has acknowledged it, and a stranger need not do that.
void ParameterServer::Core::OnLaneAccepted(ExchangeLane* lane) {
  // The next stream is asked for first, whatever becomes of this one.
  ListenForLane();
  const std::string peer = lane->peer();
  std::set<ExchangeLane*>& silent = silent_lanes_[peer];
  silent.insert(lane);
  if (std::ssize(silent) > kStreamsPerConnectionMax) acceptor_->CutStranger(peer);
}

void ParameterServer::Core::UpdateSeatTime() {
  // A job that has all its connections needs no seat, so strangers can be slowed down for its sake. Between the
  // generations of an elastic run there is no job, and all its workers come again.
  const bool is_whole =
      job_ != nullptr && std::ssize(lanes_by_id_) >= int64_t{job_->world_size()} * rendezvous_->lanes();
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
    // The id is this lane's own entry: a lane that was replaced has lost its id (OnHello).
    lanes_by_id_.erase(*lane->id);
    UpdateSeatTime();
    job_->OnLaneClosed(*lane->id, JobNow());
    // An orderly end means that the worker has read everything, the last answers included.
    if (end == ExchangeLane::End::kOrderly && job_->state() != ShardJob::State::kRunning)
      acknowledged_ranks_.insert(lane->id->rank);
  }
  lanes_.erase(lane);
  if (job_ != nullptr) EndIfTold(Clock::now());
}

}  // namespace starring
