#include "common/network/round_trip.h"

#include "common/base/status.h"
#include "common/base/steady_time.h"
#include "common/host/process_facts.h"

namespace starring {

absl::Status MeasureRoundTrip(int pings, absl::FunctionRef<absl::StatusOr<int64_t>()> ping, v1::LinkReport& link) {
  for (int i = 0; i < pings; ++i) {
    const int64_t clock_us = WallClockMicroseconds();
    const absl::Time start = SteadyNow();
    ASSIGN_OR_RETURN(const int64_t peer_clock_us, ping());
    const double microseconds = absl::ToDoubleMicroseconds(SteadyNow() - start);
    if (i > 0 && microseconds >= link.round_trip_us()) continue;
    link.set_round_trip_us(microseconds);
    // The peer read its clock at an unknown moment of the round trip. Its middle is wrong by half the round trip at
    // most, so the quickest ping gives the best answer.
    link.set_clock_ahead_s((static_cast<double>(peer_clock_us - clock_us) - microseconds / 2) / 1e6);
  }
  return absl::OkStatus();
}

}  // namespace starring
