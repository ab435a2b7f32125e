#include "common/watch/stall_report.h"

namespace starring {

void StallReport::Open(int source, Time since, const std::string& sentence) {
  const bool is_first = open_.empty();
  // In a star every server may report the same stall, and a silent one is reported by this worker itself: one line is
  // enough.
  if (!open_.insert(source).second || !is_first) return;
  since_ = since;
  if (say_ != nullptr) say_(sentence);
}

void StallReport::Close(int source, Time now) {
  // The job goes on only when no source reports a stall any more. The stall lasted since the time that the first report
  // gave.
  if (open_.erase(source) == 0 || !open_.empty()) return;
  if (say_ != nullptr) say_(GoesOnSentence(now - since_));
}

}  // namespace starring
