// Which snapshots the next generation may begin with, and how far the run would go back.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/elastic/coordinator.h"

namespace starring {
namespace {

// Snapshots at this interval cost little. After a loss, repeating the steps takes less time than noticing the loss.
constexpr double kSnapshotSeconds = 0.3;
// Used while no step has been timed.
constexpr int64_t kFirstSnapshotEvery = 10;

}  // namespace

std::vector<int64_t> Coordinator::CommonSnapshots() const {
  // Snapshots that exist before the log has a generation, or of steps that the run does not have, are another run's.
  if (!generation_.has_value()) return {};
  std::map<int64_t, int> holders;
  for (const auto& [number, id] : shards_) {
    for (const int64_t step : members_.at(id).shard.held) ++holders[step];
  }
  std::vector<int64_t> common;
  for (const auto& [step, count] : holders) {
    if (count == options_.shard_count && step > options_.first_step) common.push_back(step);
  }
  return common;
}

GenerationLog::Counts Coordinator::Counts() const {
  GenerationLog::Counts counts(static_cast<size_t>(options_.shard_count));
  for (const auto& [number, id] : shards_) {
    const ShardReport& shard = members_.at(id).shard;
    if (generation_.has_value() && shard.generation == generation_->number) {
      counts[static_cast<size_t>(number)] = shard.counted;
    }
  }
  return counts;
}

int64_t Coordinator::ReachedStep(const std::vector<int64_t>& snapshots) const {
  int64_t reached = std::max({options_.log->counted_end(), options_.first_step, kept_});
  // A coordinator that was started again does not know what all shards had. The newest snapshot that one of them still
  // has shows how far the run had come.
  if (snapshots.empty() && continues_ && !has_committed_) {
    for (const auto& [number, id] : shards_) {
      const std::vector<int64_t>& held = members_.at(id).shard.held;
      if (!held.empty()) reached = std::max(reached, held.back());
    }
  }
  return reached;
}

absl::Status Coordinator::CheckLoss(const std::vector<int64_t>& snapshots) const {
  if (!snapshots.empty()) return absl::OkStatus();
  const int64_t reached = std::max(ReachedStep(snapshots), newest_step_);
  // Before the first snapshot was on all disks, the lost steps are usually seconds old, and the run begins anew. They
  // are old if a disk has failed since the run began. But where steps are slow, there may have been no snapshot yet.
  const bool may_be_young = (kept_ < 0 && !continues_) || ReachedStep(snapshots) <= options_.first_step;
  const int64_t lost = reached - options_.first_step;
  if (may_be_young &&
      (static_cast<double>(lost) * step_seconds_ <= kYoungSeconds || lost <= 2 * generation_->snapshot_every)) {
    return absl::OkStatus();
  }
  std::vector<std::string> newest;
  for (const auto& [number, id] : shards_) {
    const std::vector<int64_t>& held = members_.at(id).shard.held;
    newest.push_back(held.empty() ? absl::StrCat("shard ", number, " has none")
                                  : absl::StrCat("shard ", number, " has that of step ", held.back()));
  }
  return absl::DataLossError(absl::StrCat("the run had come to step ", reached,
                                          ", and no snapshot is on all shards: ", absl::StrJoin(newest, ", "),
                                          ": start a new run with --resume from the last checkpoint, and with "
                                          "another --state_dir that outlives the servers"));
}

absl::StatusOr<int64_t> Coordinator::FirstStep(const std::vector<int64_t>& snapshots) const {
  if (snapshots.empty()) return options_.first_step;
  const std::optional<int64_t> latest = ledger_.LatestBegin();
  if (!latest.has_value() || snapshots.back() <= *latest) return snapshots.back();
  // Later snapshots may contain the error that is to be checked.
  const auto after = std::ranges::upper_bound(snapshots, *latest);
  if (after != snapshots.begin()) return *std::prev(after);
  return absl::InternalError(
      absl::StrCat(cause_, ", and no snapshot of a step before it is left: the oldest is of step ", snapshots.front()));
}

absl::Status Coordinator::CheckProgress(int64_t first_step, const std::vector<int64_t>& snapshots) {
  const int64_t reached = ReachedStep(snapshots);
  if (const int64_t from = std::max(reached, snapshots.empty() ? newest_step_ : 0); first_step < from) {
    Say(absl::StrCat("goes back from step ", from, " to step ", first_step, ": no newer snapshot is on all shards"));
  }
  const bool loses = first_step < reached;
  if (loses) losses_.push_back(cause_);
  // A generation that was cut short before it had a snapshot has gained nothing.
  if (!generation_.has_value() || (!loses && (kind_ == Kind::kPlanned || first_step > generation_->first_step))) {
    // Strikes for losses stay until a snapshot is on all disks. Steps that are in memory alone again can be lost again,
    // and would count as gained for ever.
    strikes_ = losses_;
    return absl::OkStatus();
  }
  if (!loses && kind_ == Kind::kWorker) return absl::OkStatus();
  // The newest snapshot may be saved once, however often the steps after it have failed.
  if (early_end_ == EarlyEnd::kAsked) return absl::OkStatus();
  strikes_.push_back(cause_);
  if (std::ssize(strikes_) < kStrikesMax) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat(strikes_.size(),
                                         " generations have not brought the run further, and the next would ",
                                         "begin at step ", first_step, ", after: ", absl::StrJoin(strikes_, "; ")));
}

int64_t Coordinator::SnapshotEvery(const std::vector<uint64_t>& workers) const {
  double seconds = 0, trial = 0;
  for (const uint64_t id : workers) {
    const WorkerReport& report = members_.at(id).worker;
    seconds = std::max(seconds, report.step_seconds);
    trial = std::max(trial, report.trial_leaf_seconds);
  }
  if (seconds <= 0) seconds = trial * std::ceil(static_cast<double>(options_.leaves) / std::ssize(workers));
  if (seconds <= 0) return generation_.has_value() ? generation_->snapshot_every : kFirstSnapshotEvery;
  return std::clamp<int64_t>(std::llround(kSnapshotSeconds / seconds), 1, 100'000);
}

bool Coordinator::AllServe() const {
  const auto serves = [this](const auto& shard) {
    return members_.at(shard.second).shard.generation == generation_->number;
  };
  return generation_.has_value() && std::ssize(shards_) == options_.shard_count && std::ranges::all_of(shards_, serves);
}

// Tells the shards which snapshots are not needed any more.
void Coordinator::KeepDurable(Time now) {
  if (!AllServe()) return;
  // The snapshots that the check of a claim needs must stay.
  const int64_t needed = ledger_.LatestBegin().value_or(std::numeric_limits<int64_t>::max());
  int64_t newest = kept_;
  for (const int64_t step : members_.at(shards_.begin()->second).shard.durable) {
    const auto has_it = [&](const auto& shard) {
      return std::ranges::binary_search(members_.at(shard.second).shard.durable, step);
    };
    if (step > newest && step <= needed && std::ranges::all_of(shards_, has_it)) newest = step;
  }
  if (newest == kept_) return;
  kept_ = newest;
  kept_since_ = now;
  if (newest > generation_->first_step) losses_.clear();
  SendToAll(true, {.kind = Order::Kind::kKeep, .generation = {.first_step = newest}});
}

// A disk that hangs reports no error.
void Coordinator::SayUnkept(Time now) {
  if (now - kept_since_ <= kSayUnkept) return;
  kept_since_ = now;
  // A single newer snapshot may be on its way to the disks.
  const std::vector<int64_t> snapshots = CommonSnapshots();
  if (snapshots.end() - std::ranges::upper_bound(snapshots, kept_) < 2) return;
  const auto newest = [this](const auto& shard) {
    const std::vector<int64_t>& durable = members_.at(shard.second).shard.durable;
    return durable.empty() ? -1 : durable.back();
  };
  const auto last = std::ranges::min_element(shards_, {}, newest);
  Say(absl::StrCat("no snapshot after step ", std::max(kept_, options_.first_step),
                   " is on all disks: look at that of ", members_.at(last->second).name,
                   ", with which the steps since then would be lost"));
}

}  // namespace starring
