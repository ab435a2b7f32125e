#include "server/door/rendezvous.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/arithmetic/optimizer.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/job/leaf_shares.h"
#include "common/reduce/owner_map.h"
#include "common/transport/shard_wire.h"

namespace starring {
namespace {

// This is a day. The number comes from a worker and is added to times, which must not overflow.
constexpr int64_t kStallReportMsMax = 24 * 3600 * 1000;

}  // namespace

absl::Status Rendezvous::Join(const v1::JoinRequest& request, std::string peer) {
  if (request.run_id().size() > kRunIdBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", request.rank(), " has a run_id of ",
                                                   request.run_id().size(), " bytes, at most ", kRunIdBytesMax,
                                                   " are allowed"));
  }
  if (request.shard() != shard_ || request.shard_count() != shard_count_) {
    return absl::InvalidArgumentError(
        absl::StrCat("this server is shard ", shard_, " of ", shard_count_, ", rank ", request.rank(),
                     " takes it for shard ", request.shard(), " of ", request.shard_count(),
                     ": give every worker all servers in --servers, in the order of their --shard"));
  }
  // A worker of an earlier attempt, which still looks for its servers at these addresses, must not define this job.
  if (!expected_run_id_.empty()) RETURN_IF_ERROR(CompareRuns(request));
  if (request.lanes() < 0 || request.lanes() > kLanesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", request.rank(), " has ", request.lanes(), " lanes, at most ", kLanesMax, " are allowed"));
  }
  if (!has_workers()) RETURN_IF_ERROR(AdoptJob(request));
  if (const absl::Status status = Compare(request); !status.ok()) {
    // The reason is kept for DescribeMissing: people who wait for the rank then read why it is missing.
    if (request.rank() >= 0 && request.rank() < static_cast<int>(members_.size()) && !members_[request.rank()].joined) {
      members_[request.rank()].refusal = std::string(status.message());
    }
    return status;
  }
  // More lanes need more descriptors than were counted for the workers before.
  if (affordable_ != nullptr && request.lanes() > lanes_) RETURN_IF_ERROR(affordable_(agreement_, request.lanes()));
  Member& member = members_[request.rank()];
  if (!member.joined) {
    member = {.joined = true, .has_joined = true, .worker_id = request.worker_id()};
    ++joined_count_;
  }
  member.peer = std::move(peer);
  lanes_ = std::max(lanes_, request.lanes());
  join_deadline_ms_ = std::max(join_deadline_ms_, request.join_deadline_ms());
  exchange_deadline_ms_ = std::max(exchange_deadline_ms_, request.exchange_deadline_ms());
  // This is the smallest that any worker asked for. 0, no report, is smaller than all.
  stall_report_ms_ = std::clamp<int64_t>(request.stall_report_ms(), 0, stall_report_ms_);
  // A complete job stays complete: a worker that reconnects must not begin a second one.
  complete_ = complete_ || joined_count_ == static_cast<int>(members_.size());
  return absl::OkStatus();
}

absl::Status Rendezvous::AdoptJob(const v1::JoinRequest& request) {
  ASSIGN_OR_RETURN(Agreement agreement, ParseAgreement(request.agreement()), "rank ", request.rank());
  if (request.rank() < 0 || request.rank() >= agreement.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", request.rank(), " is not below the world size ", agreement.world_size));
  }
  const int lanes = std::max(request.lanes(), 1);
  // A job that does not fit leaves no trace: the next worker may define another one.
  if (affordable_ != nullptr) RETURN_IF_ERROR(affordable_(agreement, lanes));
  lanes_ = lanes;
  members_.assign(agreement.world_size, {});
  first_rank_ = request.rank();
  agreement_bytes_ = request.agreement();
  agreement_ = std::move(agreement);
  run_id_ = request.run_id();
  // The old values are those of workers that joined before and have gone.
  join_deadline_ms_ = exchange_deadline_ms_ = 0;
  stall_report_ms_ = std::clamp<int64_t>(request.stall_report_ms(), 0, kStallReportMsMax);
  return absl::OkStatus();
}

absl::Status Rendezvous::CompareRuns(const v1::JoinRequest& request) const {
  if (request.run_id() == run_id_) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("this server serves run \"", run_id_, "\", rank ", request.rank(),
                                                    " belongs to run \"", request.run_id(),
                                                    "\": start servers of its own for every run"));
}

absl::Status Rendezvous::Compare(const v1::JoinRequest& request) const {
  RETURN_IF_ERROR(CompareRuns(request));
  const bool is_rank = request.rank() >= 0 && request.rank() < static_cast<int>(members_.size());
  // Before the agreements: a worker that was started again, and would begin at a later checkpoint, must not hear that
  // its flags are wrong. It may come back when this job is over.
  if (complete_ && is_rank && members_[request.rank()].worker_id != request.worker_id()) {
    return absl::FailedPreconditionError(
        absl::StrCat("this server's job has begun, with another process as rank ", request.rank(),
                     ": start servers of its own for every run, and again for a restart"));
  }
  // This comes before the rank is looked at: a rank that is too large is most often a consequence of another world
  // size, which is part of the agreement.
  RETURN_IF_ERROR(CompareAgreements(request.rank(), request.agreement(), first_rank_, agreement_bytes_));
  if (!is_rank) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", request.rank(), " is not below the world size ", members_.size()));
  }
  const Member& member = members_[request.rank()];
  // Before the job begins the rank may become free, and a worker that is refused for it tries again.
  if (member.joined && member.worker_id != request.worker_id()) {
    return absl::AlreadyExistsError(absl::StrCat("another process has joined as rank ", request.rank(), ", from ",
                                                 member.peer, ": give every worker its own --rank"));
  }
  return absl::OkStatus();
}

void Rendezvous::Leave(int rank, uint64_t worker_id) {
  // The worker's number guards against a call that ends late: by then another process may have taken the rank.
  if (complete_ || !Joined(rank) || members_[rank].worker_id != worker_id) return;
  members_[rank].joined = false;
  --joined_count_;
}

std::vector<int> Rendezvous::NeverJoined() const {
  std::vector<int> missing;
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    if (!members_[rank].has_joined) missing.push_back(static_cast<int>(rank));
  }
  return missing.size() < members_.size() ? missing : std::vector<int>();
}

std::string Rendezvous::DescribeMissing() const {
  if (members_.empty()) return "no worker has joined";
  std::vector<std::string> missing;
  std::string refusals;
  int missing_count = 0;
  const bool some_never_joined = !NeverJoined().empty();
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    const Member& member = members_[rank];
    // Its own deadline may have ended just before this server's: the ranks for which it has waited are the cause.
    if (some_never_joined && member.has_joined && member.refusal.empty()) continue;
    // A status must fit into a line, and into the trailers of a gRPC call, even if a thousand ranks are missing.
    if (members_[rank].joined || ++missing_count > kRanksNamedMax) continue;
    missing.push_back(absl::StrCat(rank));
    if (!members_[rank].refusal.empty()) {
      absl::StrAppend(&refusals, " (rank ", rank, " was refused: ", members_[rank].refusal, ")");
    }
  }
  std::string more;
  if (missing_count > kRanksNamedMax) more = absl::StrCat(" and ", missing_count - kRanksNamedMax, " more");
  return absl::StrCat(missing_count == 1 ? "rank " : "ranks ", absl::StrJoin(missing, ", "), more, " of ",
                      members_.size(), missing_count == 1 ? " has" : " have", " not joined", refusals);
}

namespace {

// The memory that a shard needs for a job, in bytes.
struct ShardMemory {
  int64_t always = 0;
  int64_t per_contribution = 0;  // to each bucket
};

ShardMemory CountShardMemory(const Agreement& agreement, int shard, int shard_count, int snapshots_max) {
  // Bookkeeping of a bucket, and of a worker in it, apart from their floats: CollectiveWait, Contribution.
  constexpr int64_t kBytesPerBucket = 1024;
  constexpr int64_t kBytesPerContribution = 256;
  int64_t owned = 0, longest = 0;
  const OwnerMap owners = OwnerMap::ShardRanges(shard_count);
  for (int b = 0; b < agreement.buckets.bucket_count(); ++b) {
    const int64_t bytes = owners.RangeOf(agreement.buckets.sum(b), shard).size() * static_cast<int64_t>(sizeof(float));
    owned += bytes;
    longest = std::max(longest, bytes);
  }
  // Buffers of the parameters and a copy in shared memory, the optimizer's state.
  const int64_t state = StateVectorCount(agreement.optimizer);
  const int64_t copies = kSliceBuffersMax + 1 + state + snapshots_max * (1 + state);
  const int64_t buckets = agreement.buckets.bucket_count();
  return {.always = owned * copies + buckets * kBytesPerBucket,
          // Over TCP a server has slots that are as long as the longest slice.
          .per_contribution =
              std::max(owned, ShardSlots(static_cast<int>(buckets)) * longest) + buckets * kBytesPerContribution};
}

}  // namespace

int64_t ShardMemoryNeeded(const Agreement& agreement, int shard, int shard_count, int snapshots_max) {
  const ShardMemory memory = CountShardMemory(agreement, shard, shard_count, snapshots_max);
  return memory.always + std::ssize(ContributorsOf(LeafOwnersOf(agreement))) * memory.per_contribution;
}

int64_t ShardContributionsMax(const Agreement& agreement, int shard, int shard_count, int64_t memory_bytes_max,
                              int snapshots_max) {
  const ShardMemory memory = CountShardMemory(agreement, shard, shard_count, snapshots_max);
  return std::max<int64_t>(memory_bytes_max - memory.always, 0) / std::max<int64_t>(memory.per_contribution, 1);
}

absl::Status CheckShardMemory(const Agreement& agreement, int shard, int shard_count, int64_t memory_bytes_max,
                              int snapshots_max) {
  const int64_t needed = ShardMemoryNeeded(agreement, shard, shard_count, snapshots_max);
  if (needed <= memory_bytes_max) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat(
      "shard %d of %d needs %.3f GB for %d elements of %d workers, this server may use %.3f GB: start more servers, or "
      "raise the server's --memory_limit_gb",
      shard, shard_count, 1e-9 * static_cast<double>(needed), agreement.buckets.element_count(), agreement.world_size,
      1e-9 * static_cast<double>(memory_bytes_max)));
}

}  // namespace starring
