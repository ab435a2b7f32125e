// Time for waits: a clock that, unlike absl::Now(), is never set and never jumps, and deadlines that can be added to
// it.
#ifndef STARRING_COMMON_BASE_STEADY_TIME_H_
#define STARRING_COMMON_BASE_STEADY_TIME_H_

#include <algorithm>
#include <chrono>

#include "absl/time/time.h"
#include "common/base/limits.h"

namespace starring {

// May only be compared with other values of this function in this process: it counts from an arbitrary moment.
inline absl::Time SteadyNow() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

// A deadline that a person or another process chose, bounded as limits.h says. A negative one is over at once.
inline absl::Duration BoundedDeadline(absl::Duration deadline) {
  return std::clamp(deadline, absl::ZeroDuration(), absl::Milliseconds(kDeadlineMsMax));
}

}  // namespace starring

#endif  // STARRING_COMMON_BASE_STEADY_TIME_H_
