#include "server/collective_sum.h"

#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "common/status.h"

namespace starring {

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
  // A repeat of the last sum is answered again; an older one has been answered, or the worker would not have gone on.
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

  Values sum = summands_[0];
  for (size_t rank = 1; rank < summands_.size(); ++rank) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += summands_[rank][i];
  }
  last_ = std::make_shared<const Values>(std::move(sum));
  ++number_;
  return wait_.Take();
}

}  // namespace starring
