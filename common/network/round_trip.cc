#include "common/network/round_trip.h"

#include "absl/strings/str_cat.h"
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

absl::Status SetBandwidth(const absl::StatusOr<double>& rate, v1::LinkReport& link) {
  if (rate.ok()) {
    link.set_bytes_per_second(*rate);
    return absl::OkStatus();
  }
  const std::string error =
      absl::StrCat("small messages pass, large ones do not: ", std::string(rate.status().message()));
  // A peer that has ended closes the connection, and so does a host on the way that refuses large segments.
  const std::string way_out = absl::IsDeadlineExceeded(rate.status()) ? "look for a smaller MTU on the way"
                              : absl::IsUnavailable(rate.status())
                                  ? "see whether it still runs, or look for a smaller MTU on the way"
                                  : "";
  FailLink(error, way_out, link);
  return absl::Status(rate.status().code(), error);
}

v1::LinkReport& AddLink(v1::LinkReport::Means means, v1::ProcessFacts::Role peer_role, int peer,
                        v1::ProcessReport& report) {
  v1::LinkReport& link = *report.add_links();
  link.set_means(means);
  link.set_peer_role(peer_role);
  link.set_peer(peer);
  return link;
}

void FailLink(const std::string& error, const std::string& way_out, v1::LinkReport& link) {
  link.set_error(error);
  link.set_way_out(way_out);
}

}  // namespace starring
