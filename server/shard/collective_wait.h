// Operations that need a part from every worker. CollectiveWait knows which workers have sent their parts, and where
// each waits for the answer. CollectiveSum sums a few float64 over all workers.
//
// Thread safety: one thread.
#ifndef STARRING_SERVER_SHARD_COLLECTIVE_WAIT_H_
#define STARRING_SERVER_SHARD_COLLECTIVE_WAIT_H_

#include <chrono>
#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/job/job_spec.h"
#include "common/wire/exchange_message.h"

namespace starring {

// One stream between a worker and this server.
struct LaneId {
  int rank = 0;
  int lane = 0;
  friend auto operator<=>(const LaneId&, const LaneId&) = default;
};

class CollectiveWait {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit CollectiveWait(int world_size = 0) : lanes_(world_size) {}

  // Notes that `from` has sent its part. True the first time. A repeat changes only where the answer goes: to the lane
  // that the part came by last.
  bool Add(LaneId from, Time now);

  int count() const { return count_; }
  bool Has(int rank) const { return lanes_[rank].has_value(); }
  bool empty() const { return count_ == 0; }
  bool complete() const { return count_ == static_cast<int>(lanes_.size()); }
  // When the first part came. REQUIRES: !empty().
  Time since() const { return since_; }
  // "rank 1 has", "ranks 1, 3 have" or "ranks 1, 2, 3 and 983 more have" (NameRanks of common/watch/roll_call.h).
  std::string DescribeMissing() const;

  // The lanes of all workers that wait, by rank.
  std::vector<LaneId> Waiting() const;
  // The same; afterwards no worker waits.
  [[nodiscard]] std::vector<LaneId> Take();

 private:
  std::vector<std::optional<LaneId>> lanes_;  // by rank
  int count_ = 0;
  Time since_;
};

// Adds what all workers send, one sum after the other. Adding rank by rank gives the same bits in any order of arrival.
class CollectiveSum {
 public:
  using Values = std::vector<double>;

  explicit CollectiveSum(int world_size) : summands_(world_size), wait_(world_size) {}

  // Takes a SUM of worker `from`: its part of the sum in progress, a repeat of that part, or a repeat of an earlier
  // sum. Returns the lanes that now get last(): all workers' if this part completed the sum, `from` if the message
  // repeats its part of last(), else none. InvalidArgument if the payload is not an array of float64 or is too long;
  // FailedPrecondition if this worker is ahead of the sum in progress, or adds something other than the others add.
  absl::StatusOr<std::vector<LaneId>> Take(LaneId from, const ReceivedMessage& message, CollectiveWait::Time now);

  // The number of the sum in progress, and which workers have sent their parts of it.
  int64_t number() const { return number_; }
  const CollectiveWait& wait() const { return wait_; }

  // The result of the sum before; null before the first. Shared with answers that are being sent.
  const std::shared_ptr<const Values>& last() const { return last_; }

 private:
  int64_t number_ = 0;
  std::vector<Values> summands_;  // of the sum in progress, by rank
  SumKind kind_;                  // of the sum in progress, as `kind_rank_`, the first sender, named it
  int kind_rank_ = 0;
  CollectiveWait wait_;
  std::shared_ptr<const Values> last_;
};

}  // namespace starring

#endif  // STARRING_SERVER_SHARD_COLLECTIVE_WAIT_H_
