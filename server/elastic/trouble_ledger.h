// Finds the worker that is the cause of a failed generation, from the reports of an elastic run's members. The
// coordinator asks the ledger, and acts.
//
// Three questions, each with its rule:
//
//   Has the job this error on any worker? A gradient that is not finite, or a loss that does not repeat, is a *claim*.
//   It is checked: the run goes back, and every leaf gets another worker than it had. If then another worker claims the
//   same of the same step, the job is the cause. If the step is made without such a claim, or if only the same worker
//   claims something again, that worker is the cause. The loss of a step is known to all workers, so a claim of another
//   loss names no worker; the third computation decides (LossCheck), and if the claim comes back, the run ends. A
//   worker that is alone in its generation cannot be checked, and is believed.
//
//   Who has kept a generation from going on? The workers that name a server which others reach; those that have joined
//   nowhere where others have, if others have waited for them; those that a shard has waited for; one whose trouble
//   comes from no other process; and those that have just come, if a shard has no room for so many. No worker is blamed
//   if that were all workers of the generation.
//
//   How long is such a worker left out? kPauseMin, and twice as long each further time, until it has taken part in a
//   generation that came further.
//
// Thread safety: one thread. The time is passed in.
#ifndef STARRING_SERVER_ELASTIC_TROUBLE_LEDGER_H_
#define STARRING_SERVER_ELASTIC_TROUBLE_LEDGER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/error_origin.h"
#include "common/job/generation.h"

namespace starring {

class TroubleLedger {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::seconds kPauseMin{5};
  static constexpr std::chrono::seconds kPauseMax{640};
  static constexpr int64_t kLossStepsLate = 16;  // after which a worker has compared the loss of a step, at most

  // A generation begins. Notes about the previous one are dropped. Claims stay, unless the new generation begins after
  // their steps.
  void Begin(const Generation& generation);

  // ---- Claims. REQUIRES: a generation has begun, and the worker takes part in it.
  enum class Verdict {
    kKnown,   // it has been noted before
    kCheck,   // the step is to be computed again, by other workers
    kLeaves,  // this worker claims what no other worker does
    kEnds,    // another worker has claimed the same of the same leaves
  };
  Verdict OnClaim(uint64_t worker, ErrorOrigin claim);
  // All steps before `next_step` have been made and kept. Returns the workers whose claims that refutes.
  std::vector<uint64_t> TakeRefuted(int64_t next_step);
  bool has_claims() const { return !claims_.empty(); }
  // The next generation must begin at this step or before it, or it would not check every claim.
  std::optional<int64_t> LatestBegin() const;
  // By leaf: the worker that had the leaf when the newest claim was made. Empty: there is no claim.
  const std::vector<uint64_t>& avoided() const { return avoided_; }

  // ---- Causes that have kept the generation from going on. REQUIRES: as above.
  void OnTrouble(uint64_t worker, ErrorOrigin origin);
  // `unjoined`: ranks that have never joined there, while others have. `late`: ranks that the shard has waited for in
  // vain.
  void OnShard(int shard, const std::vector<int>& unjoined, const std::vector<int>& late);
  void OnShardLost(int shard);
  // Whether a worker names a server.
  bool names_server() const { return !named_.empty(); }

  struct Culprit {
    uint64_t worker = 0;
    std::string why;  // "it has not joined at shard 1, and others have"
  };
  // `reaches`: whether a worker reaches all servers, asked after the generation was over.
  std::vector<Culprit> Judge(const std::function<bool(uint64_t worker)>& reaches) const;

  // ---- Pauses.
  // Returns how long this worker is left out from now on.
  std::chrono::seconds LeaveOut(uint64_t worker, Time now);
  bool IsLeftOut(uint64_t worker, Time now) const;
  // The generation in which these workers took part has come further.
  void Forgive(const std::vector<uint64_t>& workers);

 private:
  struct Claim {
    uint64_t worker = 0;
    ErrorOrigin claim;
    int64_t generation = 0;
  };
  struct Pause {
    Time end;
    std::chrono::seconds next = kPauseMin;
  };

  std::optional<uint64_t> WorkerOf(int rank) const;

  Generation generation_;
  std::set<uint64_t> before_;  // the workers of the generation before
  std::vector<Claim> claims_;
  std::vector<uint64_t> avoided_;
  std::map<int, std::set<uint64_t>> named_;  // by shard: the workers that have named it
  std::map<int, std::set<uint64_t>> unjoined_, late_;
  std::set<int> lost_shards_;
  std::set<uint64_t> own_trouble_;
  bool misses_workers_ = false;
  bool lacks_room_ = false;
  std::map<uint64_t, Pause> pauses_;
};

}  // namespace starring

#endif  // STARRING_SERVER_ELASTIC_TROUBLE_LEDGER_H_
