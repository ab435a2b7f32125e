// Wall-clock times for gRPC, which takes deadlines by the wall clock and looks at it only when a call begins.
#ifndef STARRING_COMMON_BASE_WALL_TIME_H_
#define STARRING_COMMON_BASE_WALL_TIME_H_

#include <chrono>

#include "absl/time/time.h"
#include "common/base/steady_time.h"

namespace starring {

// The moment `steady` of SteadyNow() as the wall clock shows it if it is not set until then.
inline std::chrono::system_clock::time_point WallTimeOf(absl::Time steady) {
  return std::chrono::system_clock::now() + absl::ToChronoNanoseconds(steady - SteadyNow());
}

}  // namespace starring

#endif  // STARRING_COMMON_BASE_WALL_TIME_H_
