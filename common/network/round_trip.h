// The round trip to another process, and how far its clock is ahead.
//
// Thread safety: a pure function.
#ifndef STARRING_COMMON_NETWORK_ROUND_TRIP_H_
#define STARRING_COMMON_NETWORK_ROUND_TRIP_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/starring/v1/check.pb.h"

namespace starring {

// Enough that one of them waits for no busy core on the way.
inline constexpr int kPings = 10;

// Calls `ping` so many times, which returns the peer's wall clock in microseconds, and puts the quickest one into
// `link`. The clock's error is up to half the round trip. Returns the first error of `ping`.
absl::Status MeasureRoundTrip(int pings, absl::FunctionRef<absl::StatusOr<int64_t>()> ping, v1::LinkReport& link);

}  // namespace starring

#endif  // STARRING_COMMON_NETWORK_ROUND_TRIP_H_
