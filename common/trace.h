// What happened when in this process, as Chrome trace events (JSON), which Perfetto and chrome://tracing open.
//
// Words. A *span* is something that a thread did, from a beginning to an end. Spans of one *track* nest. A *flight* is
// something that went on beside what threads did, as a message under way; flights may overlap.
//
//   TraceTrack* const track = AddTrack(trace.get(), {.name = "compute"});       // null, if there is no trace
//   { const TraceSpan span(track, "data wait", {.step = step}); ... }           // a null track: one test, no more
//
// One clock for all processes: times are CLOCK_MONOTONIC, which all processes of a machine share, and are written as
// they are. Beside them a file has the machine's boot id and what separates that clock from the wall clock, by which
// bench/compare/timeline.py puts the files of several machines on one axis: as well as their wall clocks agree.
//
// Events are kept in memory and written at the end: of each track the newest limits.h kTraceEventsMax, and the number
// of those that were dropped.
//
// Thread safety: AddTrack: any thread. A track belongs to one thread at a time. Write: nobody adds.
#ifndef STARRING_COMMON_TRACE_H_
#define STARRING_COMMON_TRACE_H_

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
#include "common/limits.h"
#include "common/mutex.h"

namespace starring {

// Nanoseconds of the clock of all traces.
inline int64_t TraceNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// What an event was about; what is negative is not written.
struct TraceLabels {
  int64_t step = -1;
  int bucket = -1;
  int peer = -1;  // under the name that the track gives it: a rank or a shard
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
    const char* peer = "rank";  // what TraceLabels::peer is
    int64_t events_max = kTraceEventsMax;
  };
  explicit TraceTrack(Options options) : options_(std::move(options)) {}

  // Beyond events_max the oldest event goes.
  void Add(const TraceEvent& event);
  // The name of an event that is no literal. It lives as long as the track.
  const char* Intern(absl::string_view name) { return names_.emplace_back(name).c_str(); }

  int64_t kept_count() const { return added_count_ < options_.events_max ? added_count_ : options_.events_max; }

 private:
  friend class Trace;
  const Options options_;
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

  // Every process writes a file of its own: its name stands before the extension. --trace=out/trace.json makes
  // out/trace.worker-0.json, out/trace.server-1.json.
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

// From construction to destruction.
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

#endif  // STARRING_COMMON_TRACE_H_
