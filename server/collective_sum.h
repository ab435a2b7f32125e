// Adds up what all workers send, rank by rank, one sum after the other: the same bits whoever came first.
//
// Thread safety: one thread.
#ifndef STARRING_SERVER_COLLECTIVE_SUM_H_
#define STARRING_SERVER_COLLECTIVE_SUM_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/sum_purpose.h"
#include "common/wire/exchange_message.h"
#include "server/collective_wait.h"

namespace starring {

class CollectiveSum {
 public:
  using Values = std::vector<double>;

  explicit CollectiveSum(int world_size) : summands_(world_size), wait_(world_size) {}

  // A SUM of worker `from`: its part of the sum in progress, a repeat of that, or a repeat of an earlier sum. Returns
  // the lanes on which last() is now to be sent: all workers' if this part was the last to come, `from` if it repeats
  // the part of last(), else none.
  // InvalidArgument if the payload is no array of float64 or too long; FailedPrecondition if this worker is ahead of
  // the sum in progress, or adds something else than the others.
  absl::StatusOr<std::vector<LaneId>> Take(LaneId from, const ReceivedMessage& message, CollectiveWait::Time now);

  // The number of the sum in progress, and who has sent its part of it.
  int64_t number() const { return number_; }
  const CollectiveWait& wait() const { return wait_; }

  // The sum before; null: there was none. Shared with answers on their way.
  const std::shared_ptr<const Values>& last() const { return last_; }

 private:
  int64_t number_ = 0;
  std::vector<Values> summands_;  // of the sum in progress, by rank
  SumKind kind_;                  // of the sum in progress, as `kind_rank_`, the first, has it
  int kind_rank_ = 0;
  CollectiveWait wait_;
  std::shared_ptr<const Values> last_;
};

}  // namespace starring

#endif  // STARRING_SERVER_COLLECTIVE_SUM_H_
