#include "worker/exchange/star/server_watch.h"

#include <algorithm>
#include <utility>

namespace starring {

ServerWatch::Action ServerWatch::Look(const Seen& seen, Time now) {
  if (!times_.enabled()) return Action::kNone;
  if (std::exchange(signs_of_life_, seen.signs_of_life) != seen.signs_of_life) {
    last_sign_ = now;
    return Rest();
  }
  if (!seen.waiting_since.has_value()) return Rest();
  quiet_since_ = std::max(*seen.waiting_since, last_sign_);
  if (!asked_.has_value()) {
    if (now - quiet_since_ < times_.ask_after()) return Action::kNone;
    asked_ = now;
    return Action::kAsk;
  }
  if (silent_ || !IsUnanswered(now) || now - quiet_since_ < times_.report_after) return Action::kNone;
  silent_ = true;
  return Action::kSilent;
}

ServerWatch::Action ServerWatch::Rest() {
  asked_.reset();
  return std::exchange(silent_, false) ? Action::kAnswers : Action::kNone;
}

}  // namespace starring
