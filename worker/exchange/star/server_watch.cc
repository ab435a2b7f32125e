#include "worker/exchange/star/server_watch.h"

#include <algorithm>
#include <utility>

namespace starring {

ServerWatch::Action ServerWatch::Look(const Seen& seen, Time now) {
  if (!times_.enabled()) return Action::kNone;
  // Any message is a sign of life, not only the answer that is waited for: a server that waits for another worker
  // answers questions.
  if (std::exchange(signs_of_life_, seen.signs_of_life) != seen.signs_of_life) {
    last_sign_ = now;
    return Rest();
  }
  if (!seen.waiting_since.has_value()) return Rest();
  // A server that was not asked for anything had no reason to send, so silence counts only from the first request that
  // waits.
  quiet_since_ = std::max(*seen.waiting_since, last_sign_);
  if (!asked_.has_value()) {
    if (now - quiet_since_ < times_.ask_after()) return Action::kNone;
    // Only one question is open at a time: a server that was stopped must not find a pile of them when it goes on.
    asked_ = now;
    return Action::kAsk;
  }
  // A silence is reported once, when the question has been open for long enough and the report is due.
  if (silent_ || !IsUnanswered(now) || now - quiet_since_ < times_.report_after) return Action::kNone;
  silent_ = true;
  return Action::kSilent;
}

ServerWatch::Action ServerWatch::Rest() {
  asked_.reset();
  return std::exchange(silent_, false) ? Action::kAnswers : Action::kNone;
}

}  // namespace starring
