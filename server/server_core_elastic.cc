// How a server of an elastic run obeys its coordinator: it leaves a generation, and serves the next one.
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/nonce.h"
#include "common/base/status.h"
#include "common/host/machine_limits.h"
#include "common/network/address.h"
#include "server/server_core.h"

namespace starring {

// How long the end of a run may take to reach everybody. This keeps nothing safe: a process that has not heard of the
// end by then ends at its own deadline for the coordinator.
static constexpr std::chrono::seconds kElasticLinger{2};

// How long a run that has begun waits for a shard that is gone, or for enough workers, unless it is told.
static constexpr absl::Duration kLossDeadline = absl::Seconds(60);

// How often a shard counts how many workers it can take, apart from the beginning of each change.
static constexpr std::chrono::seconds kRoomPause{5};

absl::Duration ParameterServer::Core::loss_deadline() const {
  return options_.join_deadline == absl::InfiniteDuration() ? kLossDeadline : options_.join_deadline;
}

void ParameterServer::Core::MakeCoordinator() {
  const Options::Elastic& elastic = options_.elastic;
  coordinator_ = std::make_unique<CoordinatorService>(
      CoordinatorService::Options{.state_dir = elastic.state_dir,
                                  .run_id = options_.run_id,
                                  .shard_count = options_.shard_count,
                                  .first_workers = elastic.first_workers,
                                  .min_workers = elastic.min_workers,
                                  .times = {.gone = elastic.gone, .silent = elastic.silent, .stuck = elastic.stuck},
                                  .start_deadline = options_.join_deadline,
                                  .loss_deadline = loss_deadline(),
                                  .hello_deadline = options_.hello_deadline,
                                  .admission = &admission_,
                                  .keep = [this](const std::string& peer) { acceptor_->KeepMember(peer); },
                                  .cut = [this](const std::string& peer) { acceptor_->CutStranger(peer); },
                                  .log = [this](const std::string& line) { Log(line); }});
}

void ParameterServer::Core::MakeMember() {
  const std::string& announce = options_.elastic.announce;
  TransportSecurity security = options_.security;
  // Shard 0 dials itself where it listens, and its certificate has the name that the others dial.
  if (options_.shard == 0 && !announce.empty() && security.tls.has_value() && security.tls->server_name.empty()) {
    security.tls->server_name = ParseHostPort(announce)->host;
  }
  member_ = std::make_unique<ShardMember>(
      ShardMember::Options{.shard = options_.shard,
                           .shard_count = options_.shard_count,
                           // Shard 0 finds itself where it listens, also if the system has chosen the port.
                           .coordinator = options_.shard == 0 ? address() : options_.elastic.coordinator,
                           .address = announce.empty() ? address() : announce,
                           .run_id = options_.run_id,
                           .state_dir = options_.elastic.state_dir,
                           .flush_state = options_.elastic.flush_state,
                           .stuck = options_.elastic.stuck,
                           .security = std::move(security),
                           .log = [this](const std::string& line) { Log(line); }});
}

void ParameterServer::Core::TickElastic(Clock::time_point now) {
  if (coordinator_ != nullptr) coordinator_->Tick(now);
  for (const v1::MemberOrder& order : member_->TakeOrders()) Obey(order);
  if (serving_ > 0) member_->SetUnjoined(rendezvous_->NeverJoined());
  if (job_ != nullptr) member_->SetCounted(job_->counted());
  MeasureRoom(now);
  member_->Tick();
  if (end_.has_value()) {
    if (!job_over_since_.has_value()) {
      job_over_since_ = now;
      // After an error no worker waits for an answer that still counts.
      if (!end_->ok()) LeaveGeneration(prepared_);
    }
    // Workers take their last answers, and the other members hear of the end, before this process ends.
    const bool all_know = lanes_by_id_.empty() && (coordinator_ == nullptr || coordinator_->has_told_all());
    if (!all_know && now - *job_over_since_ < kElasticLinger) return;
    LeaveGeneration(prepared_);
    return End(*end_);
  }
  // A shard cannot work without the coordinator.
  if (member_->disconnected_for() > loss_deadline()) {
    End(absl::UnavailableError(absl::StrCat("the coordinator ", options_.elastic.coordinator,
                                            " cannot be reached within ", absl::FormatDuration(loss_deadline()), ": ",
                                            member_->link_trouble())));
  }
  if (!interrupted_) return;
  // Other shards end with the run, which shard 0 is told to end.
  if (coordinator_ != nullptr ? !coordinator_->EndRun(now) : !member_->has_learned()) End(absl::OkStatus());
}

void ParameterServer::Core::MeasureRoom(Clock::time_point now) {
  if (!member_->has_learned() || now - room_measured_ < kRoomPause) return;
  room_measured_ = now;
  int64_t bytes = CountMemory();
  // The memory of the job that runs will be free again when its generation is over.
  if (options_.memory_bytes_max == 0 && job_ != nullptr) {
    bytes += ShardMemoryNeeded(rendezvous_->agreement(), options_.shard, options_.shard_count);
  }
  const int64_t others = ServerDescriptors(acceptor_->member_count());
  member_->SetRoom({.contributions = ShardContributionsMax(member_->agreement(), options_.shard, options_.shard_count,
                                                           bytes, SnapshotStore::kAliveMax),
                    .workers = (descriptors_max_ - others) / (kDescriptorsPerConnection * worker_lanes_)});
}

void ParameterServer::Core::Obey(const v1::MemberOrder& order) {
  switch (order.kind()) {
    case v1::MemberOrder::PREPARE:
      if (order.number() <= prepared_) return;
      // Learn comes first, because SetPrepared reports the snapshots that Learn finds.
      if (const absl::Status status = member_->Learn(order.terms()); !status.ok()) return End(status);
      LeaveGeneration(order.number());
      room_measured_ = {};  // by now the memory of the generation's job is free
      MeasureRoom(Clock::now());
      member_->SetPrepared(order.number());
      break;
    case v1::MemberOrder::SERVE:
      // One that was overtaken by the next PREPARE is void.
      if (order.number() == prepared_) ServeGeneration(order);
      break;
    case v1::MemberOrder::KEEP:
      member_->snapshots().DropBefore(order.first_step());
      break;
    case v1::MemberOrder::GIVEN_UP:
      Log(absl::StrCat("given up by the coordinator: this server ", order.text()));
      break;
    case v1::MemberOrder::END:
      end_ = order.code() == 0 ? absl::OkStatus()
                               : absl::Status(static_cast<absl::StatusCode>(order.code()), order.text());
      break;
    default:
      break;
  }
}

void ParameterServer::Core::LeaveGeneration(int64_t number) {
  prepared_ = number;
  serving_ = 0;
  for (const auto& [call, pending] : std::exchange(pending_joins_, {})) {
    call->Refuse(absl::FailedPreconditionError("the generation is over"));
  }
  // Ignore anything that still arrives on these lanes. They end after the job is gone.
  for (const auto& [id, lane] : std::exchange(lanes_by_id_, {})) {
    lane->id.reset();
    lane->Cancel();
  }
  // The counts outlive the job, because the next generation's commit needs them.
  if (job_ != nullptr) member_->SetCounted(job_->counted());
  job_.reset();
  UpdateSeatTime();
  start_.reset();
  rendezvous_.emplace(options_.shard, options_.shard_count, "");
  job_id_ = DrawNonce();
}

void ParameterServer::Core::ServeGeneration(const v1::MemberOrder& order) {
  generation_ = order;
  SnapshotStore& snapshots = member_->snapshots();
  member_->SetServing(order.number());
  if (order.from_snapshot()) {
    absl::StatusOr<std::shared_ptr<const Snapshot>> start = snapshots.Get(order.first_step());
    if (!start.ok()) return member_->SetTrouble(std::string(start.status().message()));
    start_ = *std::move(start);
  }
  snapshots.DropAfter(order.first_step());
  rendezvous_.emplace(options_.shard, options_.shard_count, absl::StrCat(options_.run_id, "/", order.number()),
                      [this](const Agreement& agreement, int lanes) { return CheckAffordable(agreement, lanes); });
  serving_ = order.number();
}

absl::Status ParameterServer::Core::CheckGeneration(const v1::JoinRequest& request) const {
  const std::string prefix = absl::StrCat(options_.run_id, "/");
  int64_t number = 0;
  if (!absl::StartsWith(request.run_id(), prefix) ||
      !absl::SimpleAtoi(absl::string_view(request.run_id()).substr(prefix.size()), &number)) {
    return absl::FailedPreconditionError(
        absl::StrCat("this server serves the elastic run \"", options_.run_id, "\": give the worker --coordinator"));
  }
  if (number == serving_) return absl::OkStatus();
  if (number < prepared_) return absl::FailedPreconditionError(absl::StrCat("generation ", number, " is over"));
  // The worker has heard of it first, and tries again.
  return absl::UnavailableError(absl::StrCat("generation ", number, " has not begun here"));
}

}  // namespace starring
