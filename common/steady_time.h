// A clock for waits and durations that nobody sets: unlike absl::Now(), it never jumps.
#ifndef STARRING_COMMON_STEADY_TIME_H_
#define STARRING_COMMON_STEADY_TIME_H_

#include <chrono>

#include "absl/time/time.h"

namespace starring {

// To be compared with other values of this function in this process only: it counts from some moment in the past.
inline absl::Time SteadyNow() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace starring

#endif  // STARRING_COMMON_STEADY_TIME_H_
