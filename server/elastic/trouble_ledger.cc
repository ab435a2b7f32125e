#include "server/elastic/trouble_ledger.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace starring {

using Kind = ErrorOrigin::Kind;

void TroubleLedger::Begin(const Generation& generation) {
  before_ = {generation_.workers.begin(), generation_.workers.end()};
  generation_ = generation;
  // A generation that begins after a claim's step does not compute that step again.
  std::erase_if(claims_, [&](const Claim& claim) { return claim.claim.number < generation.first_step; });
  if (claims_.empty()) avoided_.clear();
  named_.clear();
  unjoined_.clear();
  late_.clear();
  lost_shards_.clear();
  own_trouble_.clear();
  misses_workers_ = lacks_room_ = false;
}

TroubleLedger::Verdict TroubleLedger::OnClaim(uint64_t worker, ErrorOrigin claim) {
  CHECK(IsOfJob(claim));
  if (generation_.workers.size() == 1) return Verdict::kEnds;
  bool has_claimed = false;
  for (const Claim& earlier : claims_) {
    const bool is_own = earlier.worker == worker;
    if (earlier.generation == generation_.number) {
      // Another worker's claim in this generation is about other leaves.
      if (is_own) return Verdict::kKnown;
      continue;
    }
    // Another worker confirms the claim. All workers know the same loss, so there the same worker confirms it, too.
    if (earlier.claim == claim && (!is_own || claim.kind == Kind::kOtherLoss)) return Verdict::kEnds;
    has_claimed = has_claimed || is_own;
  }
  // This worker claims for the second time, and no other worker has claimed the same.
  if (has_claimed && claim.kind == Kind::kNotFinite) return Verdict::kLeaves;
  claims_.push_back({.worker = worker, .claim = claim, .generation = generation_.number});
  avoided_.clear();
  for (const int owner : generation_.leaf_owners) avoided_.push_back(generation_.workers[static_cast<size_t>(owner)]);
  return Verdict::kCheck;
}

std::vector<uint64_t> TroubleLedger::TakeRefuted(int64_t next_step) {
  std::vector<uint64_t> workers;
  std::erase_if(claims_, [&](const Claim& claim) {
    // Workers receive the loss of a step a few steps later. A claim of another loss blames no worker.
    const bool is_loss = claim.claim.kind == Kind::kOtherLoss;
    const int64_t last = claim.claim.number + (is_loss ? kLossStepsLate : 0);
    // Only a later generation, in which others have the leaves, refutes a claim.
    if (claim.generation == generation_.number || last >= next_step) return false;
    if (!is_loss) workers.push_back(claim.worker);
    return true;
  });
  if (claims_.empty()) avoided_.clear();
  return workers;
}

std::optional<int64_t> TroubleLedger::LatestBegin() const {
  if (claims_.empty()) return std::nullopt;
  return std::ranges::min(claims_, {}, [](const Claim& claim) { return claim.claim.number; }).claim.number;
}

std::optional<uint64_t> TroubleLedger::WorkerOf(int rank) const {
  if (rank < 0 || rank >= std::ssize(generation_.workers)) return std::nullopt;
  return generation_.workers[static_cast<size_t>(rank)];
}

void TroubleLedger::OnTrouble(uint64_t worker, ErrorOrigin origin) {
  switch (origin.kind) {
    case Kind::kServer:
      named_[static_cast<int>(origin.number)].insert(worker);
      break;
    case Kind::kMissingWorkers:
      misses_workers_ = true;
      break;
    case Kind::kNoRoom:
      lacks_room_ = true;
      break;
    case Kind::kProcess:
      own_trouble_.insert(worker);
      break;
    // These blame no worker: an exchange fails at both of its ends, and claims come to OnClaim.
    case Kind::kExchange:
    case Kind::kNotFinite:
    case Kind::kOtherLoss:
      break;
  }
}

void TroubleLedger::OnShard(int shard, const std::vector<int>& unjoined, const std::vector<int>& late) {
  // The shard's last report counts: a worker may join late.
  unjoined_[shard].clear();
  for (const int rank : unjoined) {
    if (const auto worker = WorkerOf(rank); worker.has_value()) unjoined_[shard].insert(*worker);
  }
  for (const int rank : late) {
    if (const auto worker = WorkerOf(rank); worker.has_value()) late_[shard].insert(*worker);
  }
}

void TroubleLedger::OnShardLost(int shard) { lost_shards_.insert(shard); }

std::vector<TroubleLedger::Culprit> TroubleLedger::Judge(const std::function<bool(uint64_t)>& reaches) const {
  std::map<uint64_t, std::string> culprits;
  const auto blame = [&](const std::set<uint64_t>& workers, const std::string& why) {
    // A trouble that all workers of the generation have is not one worker's fault.
    if (workers.size() >= generation_.workers.size()) return;
    for (const uint64_t worker : workers) culprits.emplace(worker, why);
  };
  for (const auto& [shard, workers] : named_) {
    // Clang 14 captures no name of a structured binding.
    const auto is_other = [&reaches, &naming = workers](uint64_t worker) {
      return !naming.contains(worker) && reaches(worker);
    };
    // A shard that was lost is the cause itself, so complaints about it blame no worker.
    if (lost_shards_.contains(shard) || std::ranges::none_of(generation_.workers, is_other)) continue;
    blame(workers, absl::StrCat("it does not get on with the server of shard ", shard, ", which others reach"));
  }
  for (const auto& [shard, workers] : unjoined_) {
    // If none has waited for them, they may have been about to join.
    if (!misses_workers_ || lost_shards_.contains(shard)) continue;
    blame(workers, absl::StrCat("it has not joined at shard ", shard, ", where others have"));
  }
  for (const auto& [shard, workers] : late_) {
    if (lost_shards_.contains(shard)) continue;
    blame(workers, absl::StrCat("shard ", shard, " has waited for it in vain"));
  }
  blame(own_trouble_, "its trouble comes from no other process");
  if (lacks_room_) {
    std::set<uint64_t> joiners;
    for (const uint64_t worker : generation_.workers) {
      if (!before_.contains(worker)) joiners.insert(worker);
    }
    blame(joiners, "a server has no room for so many workers");
  }
  // No rule alone has blamed all workers, but together they have.
  if (culprits.size() >= generation_.workers.size()) return {};
  std::vector<Culprit> all;
  for (const auto& [worker, why] : culprits) all.push_back({.worker = worker, .why = why});
  return all;
}

std::chrono::seconds TroubleLedger::LeaveOut(uint64_t worker, Time now) {
  // Pauses that ended long ago are forgotten, or the map would grow with every worker that has ever failed.
  std::erase_if(pauses_, [&](const auto& entry) { return now - entry.second.end > kPauseMax; });
  Pause& pause = pauses_[worker];
  const std::chrono::seconds length = pause.next;
  pause.end = now + length;
  pause.next = std::min(2 * length, kPauseMax);
  return length;
}

bool TroubleLedger::IsLeftOut(uint64_t worker, Time now) const {
  const auto found = pauses_.find(worker);
  return found != pauses_.end() && now < found->second.end;
}

void TroubleLedger::Forgive(const std::vector<uint64_t>& workers) {
  for (const uint64_t worker : workers) pauses_.erase(worker);
}

}  // namespace starring
