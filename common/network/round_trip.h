// The facts about a connection that a check before training reports: the round trip, how far the peer's clock is ahead,
// the bandwidth.
//
// Thread safety: pure functions.
#ifndef STARRING_COMMON_NETWORK_ROUND_TRIP_H_
#define STARRING_COMMON_NETWORK_ROUND_TRIP_H_

#include <cstdint>
#include <string>

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

// Puts the outcome of a test of bandwidth, in bytes per second, into `link`. REQUIRES: small messages have passed.
// Returns the error that it puts.
absl::Status SetBandwidth(const absl::StatusOr<double>& rate, v1::LinkReport& link);

// The next connection that is tried. Its values are yet to be set.
v1::LinkReport& AddLink(v1::LinkReport::Means means, v1::ProcessFacts::Role peer_role, int peer,
                        v1::ProcessReport& report);

// The connection is of no use, and `way_out`, which may be empty, is the advice.
void FailLink(const std::string& error, const std::string& way_out, v1::LinkReport& link);

}  // namespace starring

#endif  // STARRING_COMMON_NETWORK_ROUND_TRIP_H_
