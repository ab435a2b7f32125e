#include "server/shard/stall_watch.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace starring {

StallWatch::StallWatch(Options options)
    : options_(std::move(options)), roll_(options_.world_size, options_.times), last_arrival_(options_.now) {}

void StallWatch::OnArrival(Time now) {
  if (std::exchange(is_open_, false)) {
    // The stall lasted from the arrival before it to this one.
    if (options_.log != nullptr) options_.log(GoesOnSentence(now - last_arrival_));
    TellOthers("");
  }
  last_arrival_ = now;
}

void StallWatch::Look(const std::string& waits_for, Time now) {
  // No worker waits: all compute, read or save, and a pause without messages is no stall.
  if (waits_for.empty()) return;
  for (const int rank : roll_.TakeRanksToAsk(now)) options_.ask(rank);
  const auto waited = now - last_arrival_;
  if (is_open_ || waited < options_.times.report_after) return;
  const std::optional<RollCall::Root> root = roll_.FindRoot(now);
  // If all workers wait in the exchange, another server is at fault. This one cannot see it, but the workers can, and
  // get twice the time to report it.
  if (!root.has_value() || (root->ranks.empty() && waited < 2 * options_.times.report_after)) return;
  is_open_ = true;
  culprits_ = root->ranks;
  cause_ = root->sentence;
  const std::string sentence = StallSentence(waited, waits_for, root->sentence);
  if (options_.log != nullptr) options_.log(sentence);
  TellOthers(sentence);
}

void StallWatch::TellOthers(const std::string& text) const {
  for (int rank = 0; rank < options_.world_size; ++rank) {
    // A culprit is not told: it is busy or stopped, and would read a line about itself when it goes on.
    if (std::ranges::find(culprits_, rank) == culprits_.end()) options_.tell(rank, text);
  }
}

std::string StallWatch::DescribeRoot(Time now) const {
  if (!options_.times.enabled()) return "";
  const std::optional<RollCall::Root> root = roll_.FindRoot(now);
  if (root.has_value()) return absl::StrCat(": ", root->sentence);
  return is_open_ ? absl::StrCat(": ", cause_) : "";
}

}  // namespace starring
