#include "server/collective_wait.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

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

}  // namespace starring
