#include "server/shard/lane_tracks.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace starring {

TraceTrack* LaneTracks::TrackOf(LaneId lane, int64_t lane_count) {
  if (trace_ == nullptr) return nullptr;
  if (const auto found = tracks_.find(lane); found != tracks_.end()) return found->second;
  // Lanes that the job does not have any more count, too.
  const int64_t track_count = std::max<int64_t>(lane_count, std::ssize(tracks_) + 1);
  const int64_t share = std::max<int64_t>(kServerTracksMax * kTraceEventsMax / track_count, 1);
  if (share < events_max_) {
    events_max_ = share;
    for (const auto& [id, track] : tracks_) track->KeepAtMost(share);
  }
  return tracks_[lane] = trace_->AddTrack(
             {.name = absl::StrCat("lane ", lane.lane, " of worker ", lane.rank), .events_max = events_max_});
}

}  // namespace starring
