#include "server/refusal_log.h"

#include "absl/strings/str_cat.h"
#include "common/limits.h"

namespace starring {

void RefusalLog::Add(const std::string& line, Clock::time_point now) {
  if (now - since_ >= std::chrono::milliseconds(kLogPeriodMs)) {
    if (count_ > kLogRefusalsMax) log_(absl::StrCat(count_ - kLogRefusalsMax, " more refusals are not shown"));
    since_ = now;
    count_ = 0;
  }
  if (++count_ <= kLogRefusalsMax) log_(line);
}

}  // namespace starring
