#include "server/shard/lane_tracks.h"

#include <memory>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/metrics/trace.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

// As many as a server keeps: 16 tracks of some 7 MB.
constexpr int64_t kAllEvents = 16 * kTraceEventsMax;

std::unique_ptr<Trace> MakeTrace() {
  auto trace = Trace::Create({.path = absl::StrCat(testing::TempDir(), "/tracks.json"), .role = Trace::Role::kServer});
  EXPECT_TRUE(trace.ok()) << trace.status();
  return *std::move(trace);
}

// How many events the track keeps when it is full.
int64_t Fill(TraceTrack* track) {
  for (int64_t i = 0; i <= kTraceEventsMax; ++i) track->Add({.name = "event"});
  return track->kept_count();
}

TEST(LaneTracksTest, EveryLaneHasATrackOfItsOwnForGood) {
  const auto trace = MakeTrace();
  LaneTracks tracks(trace.get());
  std::set<TraceTrack*> all;
  for (const LaneId lane : {LaneId{0, 0}, LaneId{0, 1}, LaneId{1, 0}}) {
    TraceTrack* const track = tracks.TrackOf(lane, 3);
    EXPECT_TRUE(all.insert(track).second);
    EXPECT_EQ(tracks.TrackOf(lane, 3), track);
  }
  EXPECT_EQ(LaneTracks(nullptr).TrackOf({0, 0}, 3), nullptr);
}

TEST(LaneTracksTest, AllTracksTogetherAreBounded) {
  const auto trace = MakeTrace();
  EXPECT_EQ(Fill(LaneTracks(trace.get()).TrackOf({0, 0}, 16)), kTraceEventsMax);
  EXPECT_EQ(Fill(LaneTracks(trace.get()).TrackOf({0, 0}, 64)), kAllEvents / 64);
  EXPECT_EQ(Fill(LaneTracks(trace.get()).TrackOf({0, 0}, 4 * kAllEvents)), 1);
}

// A run that grows from 1 to 64 workers, one in each generation.
TEST(LaneTracksTest, OlderTracksKeepLessWhenARunGrows) {
  const auto trace = MakeTrace();
  LaneTracks tracks(trace.get());
  TraceTrack* const first = tracks.TrackOf({0, 0}, 1);
  EXPECT_EQ(Fill(first), kTraceEventsMax);
  for (int workers = 2; workers <= 64; ++workers) tracks.TrackOf({workers - 1, 0}, workers);
  EXPECT_EQ(first->kept_count(), kAllEvents / 64);
  EXPECT_EQ(Fill(tracks.TrackOf({1, 0}, 64)), kAllEvents / 64);
  EXPECT_EQ(Fill(tracks.TrackOf({63, 0}, 64)), kAllEvents / 64);
}

// Workers that are fewer, with other lanes: those of before count, too.
TEST(LaneTracksTest, LanesThatAreClosedCount) {
  const auto trace = MakeTrace();
  LaneTracks tracks(trace.get());
  for (int rank = 0; rank < 32; ++rank) tracks.TrackOf({rank, 0}, 32);
  for (int lane = 1; lane <= 32; ++lane) EXPECT_NE(tracks.TrackOf({0, lane}, 2), nullptr);
  EXPECT_EQ(Fill(tracks.TrackOf({0, 32}, 2)), kAllEvents / 64);
  EXPECT_EQ(Fill(tracks.TrackOf({31, 0}, 2)), kAllEvents / 64);
}

}  // namespace
}  // namespace starring
