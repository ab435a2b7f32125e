// Whose trouble ends a generation, and what becomes of that worker.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/elastic/coordinator.h"

namespace starring {

void Coordinator::OnTrouble(uint64_t id, const WorkerReport& report, Time now) {
  if (IsOfJob(report.origin)) return OnClaim(id, report, now);
  const bool was_named = ledger_.names_server();
  if (!report.trouble.empty()) ledger_.OnTrouble(id, report.origin);
  // Whether the others reach that server is asked before anyone is left out.
  if (!was_named && ledger_.names_server()) ++places_;
  if (!IsRunning()) return CommitIfReady(now);
  BeginChange(absl::StrCat(members_.at(id).name, ": ", report.trouble.empty() ? "stopped" : report.trouble),
              Kind::kOther, now);
}

void Coordinator::OnClaim(uint64_t id, const WorkerReport& report, Time now) {
  const std::string name = members_.at(id).name;
  switch (ledger_.OnClaim(id, report.origin)) {
    case TroubleLedger::Verdict::kEnds:
      return End(absl::InternalError(absl::StrCat(report.trouble, " (reported by ", name, ")")));
    case TroubleLedger::Verdict::kLeaves:
      return FailWorker(id, absl::InternalError(absl::StrCat(report.trouble, "; no other worker has found that")), now);
    case TroubleLedger::Verdict::kCheck: {
      members_.at(id).claimed = report.trouble;
      const std::string cause =
          absl::StrCat(name, ": ", report.trouble, "; step ", report.origin.number, " is computed again to check that");
      if (IsRunning()) return BeginChange(cause, Kind::kWorker, now);
      // Its shards, which it has told, were faster.
      cause_ = cause;
      kind_ = Kind::kWorker;
      Say(cause);
      break;
    }
    case TroubleLedger::Verdict::kKnown:
      break;
  }
  CommitIfReady(now);
}

void Coordinator::FailWorker(uint64_t id, const absl::Status& why, Time now) {
  const auto found = members_.find(id);
  const std::string cause = absl::StrCat(found->second.name, " has failed: ", std::string(why.message()));
  members_.erase(found);
  Say(cause);
  options_.send(id, {.kind = Order::Kind::kEnd, .end = why});
  // The generation cannot make a step without this worker's leaves.
  if (ranks_.erase(id) > 0) {
    if (IsRunning()) return BeginChange(cause, Kind::kWorker, now);
    cause_ = cause;
    kind_ = Kind::kWorker;
  }
  CommitIfReady(now);
}

void Coordinator::FailRefuted(Time now) {
  // Before all shards serve, one may report a snapshot that it is about to drop.
  if (!ledger_.has_claims() || !AllServe()) return;
  const std::vector<int64_t> snapshots = CommonSnapshots();
  if (snapshots.empty()) return;
  for (const uint64_t id : ledger_.TakeRefuted(snapshots.back())) {
    // The worker may have left since it made the claim.
    if (!members_.contains(id)) continue;
    const std::string why = absl::StrCat(members_.at(id).claimed,
                                         "; the other workers have computed the step without that: test the memory and "
                                         "the processor of this machine, or its GPU");
    FailWorker(id, absl::InternalError(why), now);
  }
}

void Coordinator::LeaveOut(uint64_t id, const std::string& why, Time now) {
  Member& member = members_.at(id);
  const std::string text = absl::StrCat("for ", ledger_.LeaveOut(id, now).count(), " s: ", why);
  Say(absl::StrCat(member.name, " is left out ", text));
  member.told = absl::StrCat("a spare ", text);
  options_.send(id, {.kind = Order::Kind::kWait, .text = member.told});
}

void Coordinator::JudgeOnce(Time now) {
  if (!generation_.has_value() || std::exchange(has_judged_, true)) return;
  const std::vector<int64_t> snapshots = CommonSnapshots();
  // A snapshot after the first step shows that the generation has come further, which ends the doubling of pauses.
  if (!snapshots.empty() && snapshots.back() > generation_->first_step) ledger_.Forgive(generation_->workers);
  const auto reaches = [this](uint64_t id) { return members_.contains(id) && HasReached(members_.at(id)); };
  const std::vector<TroubleLedger::Culprit> culprits = ledger_.Judge(reaches);
  std::vector<uint64_t> others = EligibleWorkers(now);
  for (const TroubleLedger::Culprit& culprit : culprits) std::erase(others, culprit.worker);
  // A run that is left with too few workers would end, so then none is left out.
  if (culprits.empty() || std::ssize(others) < WorkersNeeded()) return;
  for (const TroubleLedger::Culprit& culprit : culprits) {
    if (members_.contains(culprit.worker)) LeaveOut(culprit.worker, culprit.why, now);
  }
  kind_ = Kind::kWorker;
}

bool Coordinator::HasReached(const Member& member) const {
  return member.reach_asked > 0 && member.reach_places == places_ && member.worker.reached == member.reach_asked;
}

Coordinator::Reach Coordinator::LookAtReach(uint64_t id, Time now) {
  Member& member = members_.at(id);
  if (HasReached(member)) return Reach::kYes;
  const bool is_current = member.reach_asked > 0 && member.reach_places == places_;
  const bool has_failed =
      is_current && (member.worker.unreached == member.reach_asked || now - member.reach_since > kReachPatience);
  if (is_current && !has_failed) return Reach::kAsked;
  if (has_failed && !std::exchange(member.is_unreached, true)) {
    const bool has_said = member.worker.unreached == member.reach_asked;
    LeaveOut(id, has_said ? member.worker.unreached_text : "it does not tell whether it reaches all servers", now);
  }
  // It is asked again when its pause is over.
  if (has_failed && ledger_.IsLeftOut(id, now)) return Reach::kNo;
  // A new number tells the answer from a late answer to an earlier question.
  member.reach_asked = ++reach_number_;
  member.reach_places = places_;
  member.reach_since = now;
  member.is_unreached = false;
  options_.send(id, ReachOrder(member));
  return Reach::kAsked;
}

Order Coordinator::ReachOrder(const Member& member) const {
  return {.kind = Order::Kind::kReach, .generation = {.number = member.reach_asked}, .shards = ShardAddresses()};
}

std::vector<std::string> Coordinator::ShardAddresses() const {
  std::vector<std::string> addresses;
  for (const auto& [number, id] : shards_) addresses.push_back(members_.at(id).shard.address);
  return addresses;
}

}  // namespace starring
