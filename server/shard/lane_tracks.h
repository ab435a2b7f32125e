// The tracks of a server's lanes in its trace. Every lane has one of its own, because writes on two lanes overlap.
//
// Together they keep as many events as limits.h kServerTracksMax full tracks, however many lanes there are. The tracks
// of lanes that are closed stay, and an elastic run has more lanes in one generation than in the one before: its older
// tracks then keep less.
//
// Thread safety: one thread.
#ifndef STARRING_SERVER_SHARD_LANE_TRACKS_H_
#define STARRING_SERVER_SHARD_LANE_TRACKS_H_

#include <cstdint>
#include <map>

#include "common/base/limits.h"
#include "common/metrics/trace.h"
#include "server/shard/collective_wait.h"

namespace starring {

class LaneTracks {
 public:
  // `trace` outlives this object; null: there is no trace.
  explicit LaneTracks(Trace* trace) : trace_(trace) {}

  // The track of a lane, which is made if the lane is a new one; null without a trace. `lane_count`: of the job, all
  // its workers' together.
  TraceTrack* TrackOf(LaneId lane, int64_t lane_count);

 private:
  Trace* const trace_;
  std::map<LaneId, TraceTrack*> tracks_;  // of all lanes that were ever open
  int64_t events_max_ = kTraceEventsMax;  // of each track
};

}  // namespace starring

#endif  // STARRING_SERVER_SHARD_LANE_TRACKS_H_
