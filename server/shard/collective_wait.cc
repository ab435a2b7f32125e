#include "server/shard/collective_wait.h"

#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/watch/roll_call.h"

namespace starring {

bool CollectiveWait::Add(LaneId from, Time now) {
  const bool first = !Has(from.rank);
  // A repeat comes on the lane that works now: the one that brought the part before may have lost its connection.
  lanes_[from.rank] = from;
  if (!first) return false;
  // The deadline counts from the first part. A repeat does not move it, or a worker that reconnects again and again
  // would put off the deadline of a worker that is missing.
  if (count_++ == 0) since_ = now;
  return true;
}

std::string CollectiveWait::DescribeMissing() const {
  std::vector<int> missing;
  for (int rank = 0; rank < static_cast<int>(lanes_.size()); ++rank) {
    if (!Has(rank)) missing.push_back(rank);
  }
  return absl::StrCat(NameRanks(missing), missing.size() == 1 ? " has" : " have");
}

std::vector<LaneId> CollectiveWait::Waiting() const {
  std::vector<LaneId> waiting;
  waiting.reserve(count_);
  for (const std::optional<LaneId>& lane : lanes_) {
    if (lane.has_value()) waiting.push_back(*lane);
  }
  return waiting;
}

std::vector<LaneId> CollectiveWait::Take() {
  std::vector<LaneId> waiting = Waiting();
  lanes_.assign(lanes_.size(), std::nullopt);
  count_ = 0;
  return waiting;
}

absl::StatusOr<std::vector<LaneId>> CollectiveSum::Take(LaneId from, const ReceivedMessage& message,
                                                        CollectiveWait::Time now) {
  const int64_t number = message.fields.step();
  if (message.payload_bytes % sizeof(double) != 0 ||
      message.payload_bytes > kSumValuesMax * static_cast<int64_t>(sizeof(double))) {
    return absl::InvalidArgumentError(absl::StrCat("a sum over ", message.payload_bytes, " bytes: up to ",
                                                   kSumValuesMax, " float64 values are allowed"));
  }
  // A correct worker has the result of a sum before it begins the next one, so no worker is ever ahead.
  if (number > number_) {
    return absl::FailedPreconditionError(absl::StrCat("sum ", number, ", expected sum ", number_));
  }
  // The answer to the last sum may have been lost with its connection. Older answers have arrived: the worker has sent
  // its part of a later sum. There is no last sum before the first one is complete, whatever number a message claims.
  if (number < number_) {
    return number == number_ - 1 && last_ != nullptr ? std::vector<LaneId>{from} : std::vector<LaneId>();
  }
  // The payload is copied: it is a few numbers, and the message's memory goes back to gRPC at once.
  Values values(message.payload_bytes / sizeof(double));
  CopyPieces(message.payload, std::as_writable_bytes(std::span(values)));
  const SumKind kind{.purpose = static_cast<SumPurpose>(message.fields.sum_purpose()),
                     .value_count = static_cast<int64_t>(values.size())};
  // The first worker says what this sum is for. A worker that adds something else is at another place of its
  // program, and adding its numbers would be silently wrong.
  if (wait_.empty()) {
    kind_ = kind;
    kind_rank_ = from.rank;
  }
  RETURN_IF_ERROR(CheckSameSum(from.rank, kind, kind_rank_, kind_));
  // A repeat of a part changes only the lane: its values are those that arrived first.
  if (!wait_.Add(from, now)) return std::vector<LaneId>();
  summands_[from.rank] = std::move(values);
  if (!wait_.complete()) return std::vector<LaneId>();

  Values sum = summands_[0];  // by rank, not by arrival: the bits must not depend on who comes first
  for (size_t rank = 1; rank < summands_.size(); ++rank) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += summands_[rank][i];
  }
  // Each result is a new array: the one before may still be on its way to a slow worker.
  last_ = std::make_shared<const Values>(std::move(sum));
  ++number_;
  return wait_.Take();
}

}  // namespace starring
