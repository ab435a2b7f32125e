// Which workers the next generation has, and where it begins.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/job/leaf_shares.h"
#include "server/elastic/coordinator.h"
#include "server/elastic/deal_apart.h"

namespace starring {

std::vector<uint64_t> Coordinator::ReadyWorkers() const {
  std::vector<uint64_t> ready;
  for (const auto& [id, member] : members_) {
    const bool stays = !member.worker.leaves || early_end_ != EarlyEnd::kNo;
    if (!member.is_shard && member.connected && IsReady(id) && stays) ready.push_back(id);
  }
  // In this order the workers that stay keep low ranks, so rank 0, which reports the run, seldom changes.
  std::ranges::sort(ready, {}, [this](uint64_t id) { return members_.at(id).order_of_joining; });
  return ready;
}

double Coordinator::SecondsPerLeaf(uint64_t id) const {
  const double own = members_.at(id).worker.seconds_per_leaf;
  if (own > 0) return own;
  // A worker without timings is given the median.
  std::vector<double> known;
  for (const auto& [other, member] : members_) {
    if (!member.is_shard && member.worker.seconds_per_leaf > 0) known.push_back(member.worker.seconds_per_leaf);
  }
  if (known.empty()) return 1;
  std::ranges::nth_element(known, known.begin() + std::ssize(known) / 2);
  return known[known.size() / 2];
}

std::string Coordinator::MissingShard() const {
  for (int shard = 0; shard < options_.shard_count; ++shard) {
    const auto found = shards_.find(shard);
    if (found == shards_.end()) return absl::StrCat("shard ", shard, " of ", options_.shard_count, " has not come");
    const Member& member = members_.at(found->second);
    if (!member.connected || member.shard.prepared < changing_to_) {
      return absl::StrCat(member.name, ", shard ", shard, ", has not left the generation before");
    }
  }
  return "";
}

// Workers of the last generation come as soon as their exchange is over. A worker that does not come is given up
// (LossOf).
std::string Coordinator::MissingWorker() const {
  if (!generation_.has_value()) return "";
  for (const uint64_t id : generation_->workers) {
    const auto found = members_.find(id);
    if (found != members_.end() && IsInGeneration(id) && !IsReady(id)) {
      return absl::StrCat(found->second.name, " has not ended its step");
    }
    // The workers of a coordinator that was started again find it soon after it listens. Latecomers join as new
    // workers. A worker that died with it may already have a replacement.
    if (found == members_.end() && !has_committed_ && last_tick_ - options_.now < 2 * options_.times.gone &&
        ReadyWorkers().size() < generation_->workers.size()) {
      return "a worker of the last generation has not come back";
    }
  }
  return "";
}

int Coordinator::WorkersNeeded() const {
  if (early_end_ != EarlyEnd::kNo) return 1;
  return generation_.has_value() ? options_.min_workers : std::max(options_.min_workers, options_.first_workers);
}

// Why the next generation cannot begin yet; empty: it can.
std::string Coordinator::MissingForCommit(Time now) const {
  if (std::string shard = MissingShard(); !shard.empty()) return shard;
  if (std::string worker = MissingWorker(); !worker.empty()) return worker;
  const auto eligible = std::ssize(EligibleWorkers(now));
  if (eligible >= WorkersNeeded()) return "";
  std::string waiting;
  for (const uint64_t id : ReadyWorkers()) {
    const Member& member = members_.at(id);
    if (!HasReached(member) && !member.told.empty()) absl::StrAppend(&waiting, "; ", member.name, ": ", member.told);
  }
  return absl::StrCat(eligible, " of at least ", WorkersNeeded(), " workers have come", waiting);
}

std::vector<uint64_t> Coordinator::EligibleWorkers(Time now) const {
  std::vector<uint64_t> reaching = ReadyWorkers();
  std::erase_if(reaching, [this](uint64_t id) { return !HasReached(members_.at(id)); });
  std::vector<uint64_t> eligible;
  for (const uint64_t id : reaching) {
    if (!ledger_.IsLeftOut(id, now)) eligible.push_back(id);
  }
  // With too few others, a worker that was left out is tried again.
  return std::ssize(eligible) < WorkersNeeded() ? reaching : eligible;
}

std::string Coordinator::LacksRoom(const std::vector<uint64_t>& workers) const {
  const auto count = std::ssize(workers);
  for (const auto& [number, id] : shards_) {
    const ShardReport& shard = members_.at(id).shard;
    if (shard.workers_max > 0 && count > shard.workers_max) {
      return absl::StrCat("a spare: shard ", number, " has descriptors for ", shard.workers_max, " workers, not for ",
                          count, ": raise its hard limit (ulimit -Hn, LimitNOFILE), or lower --lanes");
    }
    // Each leaf makes one contribution at most.
    if (shard.contributions_max == 0 || shard.contributions_max >= options_.leaves) continue;
    int64_t contributions = count;
    if (contributions <= shard.contributions_max) {
      contributions = std::ssize(ContributorsOf(DealLeaves(options_.leaves, SecondsOf(workers))));
    }
    if (contributions <= shard.contributions_max) continue;
    return absl::StrCat("a spare: shard ", number, " has memory for ", shard.contributions_max,
                        " contributions to a bucket, ", count, " workers make ", contributions,
                        ": start more servers, or raise its --memory_limit_gb; it comes in when another one leaves");
  }
  return "";
}

std::vector<double> Coordinator::SecondsOf(const std::vector<uint64_t>& workers) const {
  std::vector<double> seconds;
  for (const uint64_t id : workers) seconds.push_back(SecondsPerLeaf(id));
  return seconds;
}

Generation Coordinator::Deal(std::vector<uint64_t> workers) const {
  // Workers that came last become spares, if there are more workers than leaves, or than a shard has room for.
  if (std::ssize(workers) > options_.leaves) workers.resize(static_cast<size_t>(options_.leaves));
  while (std::ssize(workers) > WorkersNeeded() && !LacksRoom(workers).empty()) workers.pop_back();
  if (!ledger_.has_claims())
    return {.workers = workers, .leaf_owners = DealLeaves(options_.leaves, SecondsOf(workers))};
  auto [apart, owners] = DealApart(workers, ledger_.avoided(), [this](uint64_t id) { return SecondsPerLeaf(id); });
  return {.workers = std::move(apart), .leaf_owners = std::move(owners)};
}

// Without a snapshot the workers bring the start of the run: parameters, and each worker its own statistics of batches.
void Coordinator::RefuseOtherBegins() {
  std::string way_out =
      options_.first_step == 0 ? "drop --resume" : "give --resume, and the --checkpoint_dir that the run began with";
  // A run that was continued may have come far and lost its snapshots.
  if (continues_)
    way_out += "; to go on from a later checkpoint, start a new run with --resume and another --state_dir";
  std::erase_if(members_, [&](const auto& entry) {
    const auto& [id, member] = entry;
    if (member.is_shard || member.first_step == options_.first_step) return false;
    const std::string why =
        absl::StrCat("the run began at step ", options_.first_step,
                     ", and has no snapshot; this worker would begin at step ", member.first_step, ": ", way_out);
    Say(absl::StrCat("refused ", member.name, ": ", why));
    options_.send(id, {.kind = Order::Kind::kEnd, .end = absl::InvalidArgumentError(why)});
    return true;
  });
}

void Coordinator::CommitIfReady(Time now) {
  if (phase_ != Phase::kPrepared || !MissingShard().empty() || IsFull(now)) return;
  const std::vector<int64_t> snapshots = CommonSnapshots();
  if (const absl::Status status = CheckLoss(snapshots); !status.ok()) return End(status);
  if (snapshots.empty()) RefuseOtherBegins();
  if (!MissingWorker().empty()) return;
  bool is_answered = true;
  for (const uint64_t id : ReadyWorkers()) {
    // The generation does not wait for workers that would join, unless there are too few.
    if (LookAtReach(id, now) == Reach::kAsked && IsInGeneration(id)) is_answered = false;
  }
  if (!is_answered) return;
  JudgeOnce(now);
  if (!MissingForCommit(now).empty()) return;
  const absl::StatusOr<int64_t> first_step = FirstStep(snapshots);
  if (!first_step.ok()) return End(first_step.status());
  // Progress is checked once for each change, also if the log's disk is full at first.
  if (std::exchange(checked_, changing_to_) != changing_to_) {
    if (const absl::Status status = CheckProgress(*first_step, snapshots); !status.ok()) return End(status);
  }
  Generation next = Deal(EligibleWorkers(now));
  next.number = changing_to_;
  next.first_step = *first_step;
  next.snapshot_every = SnapshotEvery(next.workers);
  // The log comes before every order: a generation begins when its commit is on the disk.
  if (!IsLogged(options_.log->Commit(next, ReachedStep(snapshots), Counts()), now)) return;
  kept_ = std::min(kept_, *first_step);
  Begin(next, /*from_snapshot=*/!snapshots.empty(), now);
}

void Coordinator::Begin(const Generation& next, bool from_snapshot, Time now) {
  SetGeneration(next);
  ledger_.Begin(next);
  phase_ = Phase::kTraining;
  if (early_end_ == EarlyEnd::kAsked) early_end_ = EarlyEnd::kSaving;
  newest_step_ = next.first_step;
  last_deal_ = last_order_ = kept_since_ = now;
  train_ = Order{.kind = Order::Kind::kTrain,
                 .generation = next,
                 .from_snapshot = from_snapshot,
                 .ends_run = early_end_ == EarlyEnd::kSaving};
  train_.shards = ShardAddresses();
  train_.cause = cause_;
  // Shards hear of the generation before the workers that will join them, so fewer workers must try again.
  SendToAll(true, ServeOrder());
  for (const uint64_t id : next.workers) {
    members_.at(id).last_progress = now;
    members_.at(id).told.clear();
    options_.send(id, train_);
  }
  Say(absl::StrCat("generation ", next.number, " from step ", next.first_step, " with ", next.workers.size(),
                   next.workers.size() == 1 ? " worker" : " workers",
                   has_committed_ ? "" : absl::StrCat(" (", cause_, ")")));
  has_committed_ = true;
}

Order Coordinator::ServeOrder() const {
  Order order = train_;
  order.kind = Order::Kind::kServe;
  order.shards.clear();
  order.cause.clear();
  return order;
}

}  // namespace starring
