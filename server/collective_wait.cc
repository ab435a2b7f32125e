#include "server/collective_wait.h"

#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/limits.h"
#include "common/status.h"

namespace starring {

bool CollectiveWait::Add(LaneId from, Time now) {
  const bool first = !Has(from.rank);
  lanes_[from.rank] = from;
  if (!first) return false;
  if (count_++ == 0) since_ = now;
  return true;
}

std::string CollectiveWait::DescribeMissing() const {
  std::vector<int> missing;
  for (int rank = 0; rank < static_cast<int>(lanes_.size()); ++rank) {
    if (!Has(rank)) missing.push_back(rank);
  }
  const bool is_one = missing.size() == 1;
  return absl::StrCat(is_one ? "rank " : "ranks ", absl::StrJoin(missing, ", "), is_one ? " has" : " have");
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
  if (number > number_) {
    return absl::FailedPreconditionError(absl::StrCat("sum ", number, ", expected sum ", number_));
  }
  // The answer to the last sum may have been lost with its connection. Older answers have arrived: the worker has sent
  // its part of a later sum.
  if (number < number_) {
    return number == number_ - 1 && last_ != nullptr ? std::vector<LaneId>{from} : std::vector<LaneId>();
  }
  Values values(message.payload_bytes / sizeof(double));
  CopyPieces(message.payload, std::as_writable_bytes(std::span(values)));
  const SumKind kind{.purpose = static_cast<SumPurpose>(message.fields.sum_purpose()),
                     .value_count = static_cast<int64_t>(values.size())};
  if (wait_.empty()) {
    kind_ = kind;
    kind_rank_ = from.rank;
  }
  RETURN_IF_ERROR(CheckSameSum(from.rank, kind, kind_rank_, kind_));
  if (!wait_.Add(from, now)) return std::vector<LaneId>();
  summands_[from.rank] = std::move(values);
  if (!wait_.complete()) return std::vector<LaneId>();

  Values sum = summands_[0];  // by rank, not by arrival: the bits must not depend on who comes first
  for (size_t rank = 1; rank < summands_.size(); ++rank) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += summands_[rank][i];
  }
  last_ = std::make_shared<const Values>(std::move(sum));
  ++number_;
  return wait_.Take();
}

}  // namespace starring
