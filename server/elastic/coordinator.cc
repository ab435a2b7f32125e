#include "server/elastic/coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/job/leaf_shares.h"

namespace starring {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kSayMissing(4'000);

// Whether a worker has done anything between two reports.
bool HasProgressed(const WorkerReport& before, const WorkerReport& now) {
  return now.leaf_count != before.leaf_count || now.step != before.step || now.computes != before.computes ||
         now.generation != before.generation;
}

std::string SecondsText(std::chrono::steady_clock::duration time) {
  const auto tenths = std::chrono::duration_cast<milliseconds>(time).count() / 100;
  return absl::StrCat(tenths / 10, ".", tenths % 10, " s");
}

}  // namespace

Coordinator::Coordinator(Options options)
    : options_(std::move(options)),
      changing_to_(options_.log->last_number() + 1),
      continues_(options_.log->last().has_value()),
      cause_(continues_ ? "the coordinator has started again" : "the run begins"),
      change_since_(continues_ ? options_.now : options_.now - options_.waited),
      last_tick_(options_.now),
      last_deal_(options_.now),
      said_missing_(options_.now),
      last_order_(options_.now),
      kept_since_(options_.now),
      // Workers remember the orders of a coordinator that has had this run before.
      // Numbers stay distinct while a coordinator asks fewer than 2^20 questions for each generation that it prepares.
      reach_number_(changing_to_ << 20) {
  if (continues_) {
    SetGeneration(*options_.log->last());
    ledger_.Begin(*generation_);
  }
  Prepare(options_.now);
}

Coordinator::Member* Coordinator::Find(uint64_t member) {
  const auto found = members_.find(member);
  return found == members_.end() ? nullptr : &found->second;
}

void Coordinator::SetGeneration(const Generation& generation) {
  generation_ = generation;
  ranks_.clear();
  // A worker's place in the list is its rank, to which leaf_owners refers.
  for (const uint64_t id : generation.workers) ranks_.emplace(id, static_cast<int>(ranks_.size()));
}

void Coordinator::Heard(Member& member, Time now) {
  member.heard = now;
  member.connected = true;
}

absl::Status Coordinator::AddShard(uint64_t id, const std::string& name, const ShardReport& report, Time now) {
  if (report.shard < 0 || report.shard >= options_.shard_count) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard ", report.shard, " is not below the shard count ", options_.shard_count));
  }
  if (ended_.has_value()) {
    options_.send(id, {.kind = Order::Kind::kEnd, .end = *ended_});
    return absl::OkStatus();
  }
  const Member* const before = Find(id);
  if (before != nullptr && (!before->is_shard || before->shard.shard != report.shard)) {
    return absl::InvalidArgumentError(absl::StrCat(name, " attends as shard ", report.shard, ", and has attended as ",
                                                   before->name, ": start it again"));
  }
  const auto [known, is_new] = shards_.try_emplace(report.shard, id);
  if (!is_new && known->second != id) {
    Member& other = members_[known->second];
    // A shard that was started again may come before the coordinator notices that its predecessor is gone.
    if (other.connected) {
      return absl::AlreadyExistsError(absl::StrCat("shard ", report.shard, " is ", other.name, " already"));
    }
    GiveUp(known->second, "another process has taken its place", now);
    // The log could not be written.
    if (ended_.has_value()) {
      options_.send(id, {.kind = Order::Kind::kEnd, .end = *ended_});
      return absl::OkStatus();
    }
    shards_[report.shard] = id;
  }
  if (before == nullptr) ++places_;
  Member& member = members_[id];
  member.name = name;
  member.is_shard = true;
  member.shard.shard = report.shard;
  Heard(member, now);
  // The shard was not here when the order went to all.
  if (phase_ == Phase::kPrepared) {
    options_.send(id, {.kind = Order::Kind::kPrepare, .generation = {.number = changing_to_}});
  }
  OnShard(id, report, now);
  return absl::OkStatus();
}

absl::Status Coordinator::AddWorker(uint64_t id, const std::string& name, const WorkerReport& report, Time now) {
  if (ended_.has_value()) {
    options_.send(id, {.kind = Order::Kind::kEnd, .end = *ended_});
    return absl::OkStatus();
  }
  const Member* const before = Find(id);
  if (before != nullptr && (before->is_shard || before->connected)) {
    return absl::AlreadyExistsError(
        absl::StrCat(before->name, " has the number of ", name, " already: start the latter again"));
  }
  const auto [found, is_new] = members_.try_emplace(id);
  Member& member = found->second;
  // A worker that comes back keeps its place in the order, from which ranks follow.
  if (is_new) {
    member.order_of_joining = joined_count_++;
    member.last_progress = now;
  }
  member.name = name;
  member.first_step = report.first_step;
  Heard(member, now);
  OnWorker(id, report, now);
  return absl::OkStatus();
}

void Coordinator::OnShard(uint64_t id, const ShardReport& report, Time now) {
  Member* const member = Find(id);
  if (member == nullptr || !member->is_shard || member->shard.shard != report.shard || ended_.has_value()) return;
  Heard(*member, now);
  member->shard = report;
  const bool serves = generation_.has_value() && report.generation == generation_->number;
  if (serves) ledger_.OnShard(report.shard, report.unjoined, report.late);
  if (IsRunning() && serves) {
    if (!report.trouble.empty()) return BeginChange(report.trouble, Kind::kOther, now);
    const auto has_finished = [this](const auto& shard) { return members_[shard.second].shard.finished; };
    if (std::ssize(shards_) == options_.shard_count && std::ranges::all_of(shards_, has_finished)) {
      // Without its end in the log a run that has steps left can go on where it was.
      if (!shortage_.ok() && generation_->first_step < options_.end_step) return End(shortage_);
      // The shards report it again until the end is written.
      if (IsFull(now)) return;
      const int64_t end = early_end_ == EarlyEnd::kSaving ? generation_->first_step : options_.end_step;
      if (IsLogged(options_.log->End(end, Counts()), now)) End(absl::OkStatus());
      return;
    }
  }
  FailRefuted(now);
  KeepDurable(now);
  CommitIfReady(now);
}

void Coordinator::OnWorker(uint64_t id, const WorkerReport& report, Time now) {
  Member* const member = Find(id);
  if (member == nullptr || member->is_shard || ended_.has_value()) return;
  Heard(*member, now);
  if (HasProgressed(member->worker, report)) member->last_progress = now;
  member->worker = report;
  const bool takes_part = IsInGeneration(id) && report.generation == generation_->number;
  if (takes_part) {
    newest_step_ = std::max(newest_step_, report.step);
    if (report.step_seconds > 0) step_seconds_ = report.step_seconds;
  }
  if (!report.failure.ok()) return FailWorker(id, report.failure, now);
  // This includes a worker that was told to stop: its trouble keeps it and the others from the snapshot.
  if (takes_part && report.ready && (!report.trouble.empty() || phase_ == Phase::kTraining)) {
    return OnTrouble(id, report, now);
  }
  ConsiderWorker(id, *member, now);
  ChangeIfStopped(now);
  CommitIfReady(now);
}

void Coordinator::OnDisconnect(uint64_t id, Time now) {
  Member* const member = Find(id);
  if (member == nullptr || !std::exchange(member->connected, false)) return;
  member->down_since = now;
  // A worker that has announced its end and has ended its step does not come back, so its place is not kept.
  if (member->is_shard || !member->worker.leaves || !IsReady(id)) return;
  Say(absl::StrCat(member->name, " has left"));
  members_.erase(id);
}

void Coordinator::Tick(Time now) {
  if (ended_.has_value()) return;
  // If this process was paused, silence says nothing about the others.
  const MemberTimes& times = options_.times;
  // After a shorter pause the others still have half of their time to be heard.
  if (now - std::exchange(last_tick_, now) > std::min({times.gone, times.silent, times.stuck}) / 2) {
    for (auto& [id, member] : members_) member.heard = member.down_since = member.last_progress = now;
    change_since_ = now;
  }
  if (phase_ == Phase::kUnprepared && !IsFull(now)) Prepare(now);
  GiveUpLost(now);
  if (ended_.has_value()) return;
  ConsiderShares(now);
  ChangeIfStopped(now);
  CommitIfReady(now);
  if (ended_.has_value()) return;
  RepeatOrders(now);
  if (IsRunning()) return SayUnkept(now);
  if (full_since_.has_value()) return;  // which has a deadline of its own
  const std::string missing = MissingForCommit(now);
  if (missing.empty()) return;
  if (now - change_since_ > ChangeDeadline()) return EndForShortage(missing, now);
  if (now - said_missing_ > kSayMissing) {
    said_missing_ = now;
    Say(absl::StrCat("waiting: ", missing));
  }
}

// Before the first generation nothing is lost yet, and processes may wait in a scheduler's queue.
milliseconds Coordinator::ChangeDeadline() const {
  return generation_.has_value() ? options_.join_deadline : options_.start_deadline;
}

// One worker is enough to save what there is.
void Coordinator::EndForShortage(const std::string& missing, Time now) {
  shortage_ = absl::UnavailableError(absl::StrCat(
      missing, " within ", SecondsText(ChangeDeadline()), ", after: ", cause_,
      generation_.has_value() ? ": start again with --resume from the last checkpoint, or all with the same --state_dir"
                              : ": start again"));
  if (AskForEarlyEnd() || CommonSnapshots().empty() || !MissingForCommit(now).empty()) return End(shortage_);
  Say(absl::StrCat("saves before it ends: ", missing));
  CommitIfReady(now);
}

bool Coordinator::AskForEarlyEnd() {
  if (early_end_ != EarlyEnd::kNo) return true;
  early_end_ = EarlyEnd::kAsked;
  return false;
}

void Coordinator::EndRun(Time now) {
  if (ended_.has_value() || AskForEarlyEnd()) return;
  if (!generation_.has_value()) return End(absl::CancelledError("asked to end before the first step"));
  // Send this even if the workers were told to stop for another cause.
  SendToAll(false, StopOrder());
  if (phase_ == Phase::kTraining) StopGeneration("asked to end the run", now);
  ChangeIfStopped(now);
  CommitIfReady(now);
}

void Coordinator::Say(const std::string& line) const {
  if (options_.say != nullptr) options_.say(line);
}

std::string Coordinator::LossOf(uint64_t id, const Member& member, Time now) const {
  if (!member.connected && now - member.down_since > options_.times.gone) return "is gone: its connection is down";
  if (now - member.heard > options_.times.silent) {
    return absl::StrCat("has been silent for ", SecondsText(now - member.heard));
  }
  if (member.is_shard || member.worker.ready) return "";
  const std::chrono::duration<double> usual(member.worker.seconds_per_leaf * kStuckLeaves);
  const auto patience = std::max<std::chrono::duration<double>>(options_.times.stuck, usual);
  // Its exchange was cut, so whatever it waited for, it waits no more.
  if (!member.worker.computes && !IsRunning() && IsInGeneration(id) && now - change_since_ > patience) {
    return absl::StrCat("is stuck: it has not ended its step for ", SecondsText(now - change_since_));
  }
  const auto idle = now - member.last_progress;
  if (member.worker.computes && idle > patience) {
    return absl::StrCat("is stuck: it has computed nothing for ", SecondsText(idle));
  }
  // The shards notice a missing worker once another worker waits for it. No worker waits for one that is alone.
  // Fetching a large model over a slow link, or from a slow disk, may take minutes without a report.
  const bool is_alone = IsRunning() && IsInGeneration(id) && generation_->workers.size() == 1;
  if (is_alone && idle > std::max<std::chrono::duration<double>>(patience, kAlonePatience * options_.join_deadline)) {
    return absl::StrCat("is stuck: it has come no further for ", SecondsText(idle));
  }
  return "";
}

void Coordinator::GiveUpLost(Time now) {
  // GiveUp erases from members_, so the lost members are collected first.
  std::vector<std::pair<uint64_t, std::string>> lost;
  for (const auto& [id, member] : members_) {
    if (std::string why = LossOf(id, member, now); !why.empty()) lost.emplace_back(id, std::move(why));
  }
  for (const auto& [id, why] : lost) {
    // The change that the previous loss has caused may have refused this member.
    if (members_.contains(id)) GiveUp(id, why, now);
  }
}

void Coordinator::GiveUp(uint64_t id, const std::string& why, Time now) {
  const auto found = members_.find(id);
  // Taken out first: the change that follows looks at all members.
  const Member member = std::move(found->second);
  members_.erase(found);
  if (member.is_shard) {
    shards_.erase(member.shard.shard);
    ledger_.OnShardLost(member.shard.shard);
  }
  const std::string cause = absl::StrCat(member.name, " ", why);
  Say(cause);
  // Tell the process, if it still runs, to start over.
  options_.send(id, {.kind = Order::Kind::kGivenUp, .text = why});
  // This change does not wait for the member. If it attends again, it joins as a new one.
  const bool took_part = member.is_shard || ranks_.erase(id) > 0;
  if (IsRunning() && took_part) BeginChange(cause, Kind::kOther, now);
}

bool Coordinator::IsInGeneration(uint64_t id) const { return ranks_.contains(id); }

// While a generation runs, a report that was on its way when the generation began is about the previous one. Once the
// generation is over, a worker that reports so never got its order: the order was lost, or the coordinator died after
// the commit.
bool Coordinator::IsReady(uint64_t id) const {
  const WorkerReport& report = members_.at(id).worker;
  return report.ready && (!IsRunning() || !IsInGeneration(id) || report.generation >= generation_->number);
}

// The slowest worker's time of a step if the leaves had these owners.
static double SlowestSeconds(const std::vector<int>& owners, const std::vector<double>& seconds) {
  std::vector<double> times(seconds.size());
  for (const int owner : owners) times[static_cast<size_t>(owner)] += seconds[static_cast<size_t>(owner)];
  return *std::ranges::max_element(times);
}

void Coordinator::ConsiderShares(Time now) {
  if (phase_ != Phase::kTraining || early_end_ == EarlyEnd::kSaving || now - last_deal_ < kDealPause) return;
  std::vector<double> seconds;
  double leaves_per_second = 0;
  for (const uint64_t id : generation_->workers) {
    const Member* const member = Find(id);
    // Shares can be compared only if the speed of every worker is known.
    if (member == nullptr || member->worker.seconds_per_leaf <= 0) return;
    seconds.push_back(member->worker.seconds_per_leaf);
    leaves_per_second += 1 / seconds.back();
  }
  const double gainful = (1 - kGainMin) * SlowestSeconds(generation_->leaf_owners, seconds);
  // No shares are faster than all workers at full speed. With many workers dealing is slow, and this thread adds
  // gradients, too.
  if (options_.leaves / leaves_per_second >= gainful) return;
  last_deal_ = now;
  if (SlowestSeconds(DealLeaves(options_.leaves, seconds), seconds) < gainful) {
    StopGeneration("other shares are faster", now);
  }
}

void Coordinator::ConsiderWorker(uint64_t id, Member& member, Time now) {
  if (phase_ != Phase::kTraining) return;
  const bool is_saving = early_end_ == EarlyEnd::kSaving;
  if (IsInGeneration(id)) {
    if (member.worker.leaves && !is_saving) StopGeneration(absl::StrCat(member.name, " leaves"), now);
    return;
  }
  if (!IsReady(id) || member.worker.leaves) return;
  // This includes a spare: it comes in at once when a worker is lost.
  const Reach reach = LookAtReach(id, now);
  std::string why;
  if (is_saving) {
    why = "the run ends: its last generation saves what there is; this worker comes in only if that fails";
  } else if (std::ssize(generation_->workers) == options_.leaves) {
    why = absl::StrCat("a spare: all ", options_.leaves, " micro-batches have a worker; it comes in when one leaves");
  } else if (ledger_.IsLeftOut(id, now)) {
    return;  // it was told why
  } else {
    std::vector<uint64_t> workers = generation_->workers;
    workers.push_back(id);
    why = LacksRoom(workers);
    if (why.empty()) {
      if (reach == Reach::kYes) StopGeneration(absl::StrCat(member.name, " joins"), now);
      return;
    }
  }
  // A spare is told again when the last generation begins.
  if (std::exchange(member.told, why) != why) options_.send(id, {.kind = Order::Kind::kWait, .text = why});
}

void Coordinator::StopGeneration(const std::string& cause, Time now) {
  Say(absl::StrCat("generation ", generation_->number, " ends at its next snapshot: ", cause));
  cause_ = cause;
  phase_ = Phase::kStopping;
  last_order_ = now;
  for (const uint64_t id : generation_->workers) options_.send(id, StopOrder());
}

void Coordinator::ChangeIfStopped(Time now) {
  const auto is_ready_or_lost = [this](uint64_t id) { return !members_.contains(id) || IsReady(id); };
  if (phase_ != Phase::kStopping || !std::ranges::all_of(generation_->workers, is_ready_or_lost)) return;
  BeginChange(cause_, Kind::kPlanned, now);
}

// A member may have had no connection when its order was sent.
void Coordinator::RepeatOrders(Time now) {
  if (now - last_order_ < kRepeatPause) return;
  last_order_ = now;
  for (const auto& [id, member] : members_) {
    if (!member.connected) continue;
    const bool has_left = member.is_shard ? member.shard.prepared >= changing_to_ : member.worker.ready;
    if (phase_ == Phase::kPrepared && !has_left) {
      options_.send(id, {.kind = member.is_shard ? Order::Kind::kPrepare : Order::Kind::kCut,
                         .generation = {.number = changing_to_}});
    }
    const bool waits = !member.is_shard && member.worker.ready && !(IsRunning() && IsInGeneration(id));
    const bool has_answered =
        member.worker.reached == member.reach_asked || member.worker.unreached == member.reach_asked;
    if (waits && !has_answered && now - member.reach_since >= kRepeatPause) options_.send(id, ReachOrder(member));
    if (!IsRunning()) continue;
    if (member.is_shard && member.shard.generation < generation_->number) options_.send(id, ServeOrder());
    if (member.is_shard || !IsInGeneration(id)) continue;
    if (member.worker.generation < generation_->number) {
      options_.send(id, train_);
    } else if (phase_ == Phase::kStopping && !member.worker.ready) {
      options_.send(id, StopOrder());
    }
  }
}

void Coordinator::BeginChange(const std::string& cause, Kind kind, Time now) {
  CHECK(IsRunning());
  if (kind != Kind::kPlanned) {
    Say(absl::StrCat("generation ", generation_->number, " is cut short at step ", newest_step_, ": ", cause));
  }
  phase_ = Phase::kUnprepared;
  kind_ = kind;
  has_judged_ = false;
  cause_ = cause;
  change_since_ = said_missing_ = last_order_ = now;
  // The number is above all that a member may have heard of, also those that were prepared and never committed.
  changing_to_ = options_.log->last_number() + 1;
  Prepare(now);
  CommitIfReady(now);
}

void Coordinator::Prepare(Time now) {
  if (!IsLogged(options_.log->Prepare(changing_to_), now)) return;
  phase_ = Phase::kPrepared;
  SendToAll(true, {.kind = Order::Kind::kPrepare, .generation = {.number = changing_to_}});
  // A worker that waits for a lost shard would otherwise wait until its deadline.
  SendToAll(false, {.kind = Order::Kind::kCut, .generation = {.number = changing_to_}});
}

bool Coordinator::IsLogged(const absl::Status& status, Time now) {
  if (status.ok()) {
    full_since_.reset();
    return true;
  }
  // Space may be freed. After any other error the log is another coordinator's, or proves too little.
  if (!absl::IsResourceExhausted(status)) {
    End(status);
    return false;
  }
  if (!full_since_.has_value()) {
    full_since_ = now;
    Say(absl::StrCat(std::string(status.message()), "; trying again for ", SecondsText(options_.join_deadline)));
  }
  full_tried_ = now;
  if (now - *full_since_ > options_.join_deadline) End(status);
  return false;
}

void Coordinator::SendToAll(bool to_shards, const Order& order) {
  for (const auto& [id, member] : members_) {
    if (member.is_shard == to_shards) options_.send(id, order);
  }
}

void Coordinator::End(const absl::Status& status) {
  if (ended_.has_value()) return;
  ended_ = status;
  phase_ = Phase::kEnded;
  for (const bool to_shards : {false, true}) SendToAll(to_shards, {.kind = Order::Kind::kEnd, .end = status});
}

Coordinator::Status Coordinator::Describe() const {
  Status status{.generation = generation_.has_value() ? generation_->number : 0,
                .first_step = generation_.has_value() ? generation_->first_step : options_.first_step,
                .step = newest_step_,
                .changing = !IsRunning(),
                .cause = cause_};
  for (const auto& [id, member] : members_) {
    std::string what = absl::StrCat("shard ", member.shard.shard, " of ", options_.shard_count);
    if (const auto rank = ranks_.find(id); !member.is_shard && rank == ranks_.end()) {
      what = "spare";
    } else if (!member.is_shard) {
      std::vector<std::string> nodes;
      for (const LeafRange& node : ShareOf(rank->second, generation_->leaf_owners)) {
        nodes.push_back(absl::StrCat(node.begin, "-", node.end));
      }
      what = absl::StrCat("rank ", rank->second, ", micro-batches ", absl::StrJoin(nodes, ", "));
    }
    status.members.push_back({.name = member.name, .what = what});
  }
  for (int shard = 0; shard < options_.shard_count; ++shard) {
    const auto found = shards_.find(shard);
    if (found == shards_.end() || !members_.at(found->second).connected) status.missing_shards.push_back(shard);
  }
  status.snapshots = CommonSnapshots();
  return status;
}

}  // namespace starring
