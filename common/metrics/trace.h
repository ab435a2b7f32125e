// Records what this process did and when, as Chrome trace events (JSON), which Perfetto and chrome://tracing open.
//
// Words. A *span* is something that a thread did, from a beginning to an end. Spans of one *track* nest. A *flight* is
// something that lasted independently of any thread, such as a message on its way; flights may overlap.
//
//   TraceTrack* const track = AddTrack(trace.get(), {.name = "compute"});       // null, if there is no trace
//   { const TraceSpan span(track, "data wait", {.step = step}); ... }           // a null track costs one comparison
//
// One clock for all processes: times are CLOCK_MONOTONIC, which all processes of a machine share, and are written
// unchanged. A file also has the machine's boot id and the difference between that clock and the wall clock, by which
// bench/compare/timeline.py puts the files of several machines on one axis, as exactly as their wall clocks agree.
//
// Events are kept in memory and written at the end: for each track the newest limits.h kTraceEventsMax, and the number
// of events that were dropped.
//
// Thread safety: any thread may call AddTrack. A track belongs to one thread at a time. During Write no thread may add
// an event.
#ifndef STARRING_COMMON_METRICS_TRACE_H_
#define STARRING_COMMON_METRICS_TRACE_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/limits.h"
#include "common/base/mutex.h"

namespace starring {

// Nanoseconds of the clock of all traces.
inline int64_t TraceNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// The subject of an event. Negative values are not written.
struct TraceLabels {
  int64_t step = -1;
  int bucket = -1;
  int peer = -1;  // a rank or a shard, as the track's Options::peer says
};

struct TraceEvent {
  enum class Kind { kSpan, kFlight };
  const char* name = nullptr;  // a literal, or TraceTrack::Intern's
  Kind kind = Kind::kSpan;
  int64_t begin_ns = 0;  // TraceNow
  int64_t end_ns = 0;
  TraceLabels labels;
};

class TraceTrack {
 public:
  struct Options {
    std::string name;           // "compute"
    const char* peer = "rank";  // the meaning of TraceLabels::peer
    int64_t events_max = kTraceEventsMax;
  };
  explicit TraceTrack(Options options) : options_(std::move(options)) {}

  // With more than events_max events the oldest is dropped.
  void Add(const TraceEvent& event);
  // Lowers events_max, and drops the oldest events that exceed it. No effect if it is lower already. REQUIRES:
  // events_max >= 1.
  void KeepAtMost(int64_t events_max);
  // For the name of an event that is no literal. The result lives as long as the track.
  const char* Intern(absl::string_view name) { return names_.emplace_back(name).c_str(); }

  int64_t kept_count() const { return added_count_ < options_.events_max ? added_count_ : options_.events_max; }

 private:
  friend class Trace;
  Options options_;
  std::deque<std::string> names_;   // addresses stay
  std::vector<TraceEvent> events_;  // at most events_max, then a ring
  int64_t added_count_ = 0;
};

class Trace {
 public:
  enum class Role { kWorker, kServer };
  struct Options {
    std::string path;  // as given to --trace; see PathOf
    Role role = Role::kWorker;
    int number = 0;  // rank or shard
  };
  // Leaves an empty trace at PathOf(options). InvalidArgument if nothing can be written there.
  static absl::StatusOr<std::unique_ptr<Trace>> Create(Options options);

  // Every process writes its own file, with the process's name before the extension: --trace=out/trace.json makes
  // out/trace.worker-0.json and out/trace.server-1.json.
  static std::string PathOf(const Options& options);

  // Tracks appear in the order in which they were added. The track lives as long as the trace.
  TraceTrack* AddTrack(TraceTrack::Options options);
  // Replaces the file with all events.
  absl::Status Write() const;

 private:
  explicit Trace(Options options) : options_(std::move(options)) {}
  std::string Json() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  mutable Mutex mutex_;
  std::deque<TraceTrack> tracks_ ABSL_GUARDED_BY(mutex_);  // addresses stay
};

inline TraceTrack* AddTrack(Trace* trace, TraceTrack::Options options) {
  return trace == nullptr ? nullptr : trace->AddTrack(std::move(options));
}

// Adds a flight that ends now. No effect if `track` is null.
inline void AddFlight(TraceTrack* track, const char* name, int64_t begin_ns, const TraceLabels& labels) {
  if (track == nullptr) return;
  track->Add(
      {.name = name, .kind = TraceEvent::Kind::kFlight, .begin_ns = begin_ns, .end_ns = TraceNow(), .labels = labels});
}

// Adds a span that lasts from construction to destruction.
class TraceSpan {
 public:
  TraceSpan(TraceTrack* track, const char* name, TraceLabels labels = {}) : track_(track) {
    if (track_ != nullptr) event_ = {.name = name, .begin_ns = TraceNow(), .labels = labels};
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;
  ~TraceSpan() {
    if (track_ == nullptr) return;
    event_.end_ns = TraceNow();
    track_->Add(event_);
  }

 private:
  TraceTrack* const track_;
  TraceEvent event_;
};

}  // namespace starring

#endif  // STARRING_COMMON_METRICS_TRACE_H_
