#include "common/metrics/trace.h"

#include <time.h>

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/base/atomic_file.h"
#include "common/host/host_identity.h"

namespace starring {
namespace {

// Files of one job are merged into one timeline, where a process id must name one process. There are at most limits.h
// kWorldSizeMax workers.
constexpr int kServersFrom = 10000;  // process ids of servers; workers count from 1

const char* RoleName(Trace::Role role) { return role == Trace::Role::kWorker ? "worker" : "server"; }

int64_t WallMinusMonotonicMicroseconds() {
  timespec wall;
  clock_gettime(CLOCK_REALTIME, &wall);
  return (wall.tv_sec * int64_t{1000000000} + wall.tv_nsec - TraceNow()) / 1000;
}

// Layer names come from files that people write, and may contain anything.
std::string Quoted(absl::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
  }
  return quoted + "\"";
}

// Chrome's format counts in microseconds. The nanoseconds become three decimals by hand: StrAppend would print a double
// with six digits.
void AppendMicroseconds(const char* field, int64_t ns, std::string* json) {
  const int64_t fraction = ns % 1000;
  absl::StrAppend(json, field, ns / 1000, fraction < 10 ? ".00" : fraction < 100 ? ".0" : ".", fraction);
}

void AppendLabels(const TraceLabels& labels, const char* peer, std::string* json) {
  absl::StrAppend(json, ",\"args\":{");
  const char* separator = "\"";
  const auto append = [&](const char* name, int64_t value) {
    if (value < 0) return;
    absl::StrAppend(json, separator, name, "\":", value);
    separator = ",\"";
  };
  append("step", labels.step);
  append("bucket", labels.bucket);
  append(peer, labels.peer);
  absl::StrAppend(json, "}");
}

void AppendMetadata(const char* name, const std::string& where, const std::string& arguments, std::string* json) {
  absl::StrAppend(json, "{\"ph\":\"M\",\"name\":\"", name, "\",", where, ",\"args\":{", arguments, "}},\n");
}

}  // namespace

void TraceTrack::Add(const TraceEvent& event) {
  // Reserved once, or growing would copy all events in the middle of a later step. Pages that are not written to take
  // no memory.
  if (events_.capacity() == 0) events_.reserve(options_.events_max);
  if (added_count_ < options_.events_max) {
    events_.push_back(event);
  } else {
    events_[added_count_ % options_.events_max] = event;
  }
  ++added_count_;
}

void TraceTrack::KeepAtMost(int64_t events_max) {
  if (events_max >= options_.events_max) return;
  std::vector<TraceEvent> events;
  events.reserve(events_max);
  events.resize(std::min(added_count_, events_max));
  for (int64_t i = added_count_ - std::ssize(events); i < added_count_; ++i) {
    events[i % events_max] = events_[i % options_.events_max];
  }
  events_ = std::move(events);
  options_.events_max = events_max;
}

std::string Trace::PathOf(const Options& options) {
  const size_t name = options.path.rfind('/') + 1;  // 0 if there is none
  const size_t dot = options.path.rfind('.');
  // A dot in a folder's name, or at the beginning of the file's, begins no extension.
  const size_t cut = dot != std::string::npos && dot > name ? dot : options.path.size();
  return absl::StrCat(options.path.substr(0, cut), ".", RoleName(options.role), "-", options.number,
                      options.path.substr(cut));
}

absl::StatusOr<std::unique_ptr<Trace>> Trace::Create(Options options) {
  std::unique_ptr<Trace> trace(new Trace(std::move(options)));
  // Fails now if the path cannot be written to, rather than after the training.
  if (const absl::Status status = trace->Write(); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("flag --trace cannot be \"", trace->options_.path,
                                                   "\": ", std::string(status.message()),
                                                   ": name a file in a folder that can be written to"));
  }
  return trace;
}

TraceTrack* Trace::AddTrack(TraceTrack::Options options) {
  const MutexLock lock(mutex_);
  return &tracks_.emplace_back(std::move(options));
}

absl::Status Trace::Write() const {
  const MutexLock lock(mutex_);
  // The lock keeps AddTrack out while the tracks are read.
  return WriteFileAtomically(PathOf(options_), Json());
}

std::string Trace::Json() const {
  const int process = options_.number + (options_.role == Role::kWorker ? 1 : kServersFrom);
  const std::string in_process = absl::StrCat("\"pid\":", process);
  std::string json = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  AppendMetadata("process_sort_index", in_process, absl::StrCat("\"sort_index\":", process), &json);
  int64_t dropped_count = 0;
  int64_t flight = 0;
  int number = 0;
  for (const TraceTrack& track : tracks_) {
    const std::string where = absl::StrCat(in_process, ",\"tid\":", ++number);
    AppendMetadata("thread_name", where, absl::StrCat("\"name\":", Quoted(track.options_.name)), &json);
    AppendMetadata("thread_sort_index", where, absl::StrCat("\"sort_index\":", number), &json);
    dropped_count += track.added_count_ - track.kept_count();
    // The loop begins with the oldest event that is kept. Event i is at i modulo events_max, in a full ring and in one
    // that is not.
    for (int64_t i = track.added_count_ - track.kept_count(); i < track.added_count_; ++i) {
      const TraceEvent& event = track.events_[i % track.options_.events_max];
      const std::string what = absl::StrCat("\",\"name\":", Quoted(event.name), ",", where);
      if (event.kind == TraceEvent::Kind::kSpan) {
        absl::StrAppend(&json, "{\"ph\":\"X", what);
        AppendMicroseconds(",\"dur\":", event.end_ns - event.begin_ns, &json);
      } else {
        // A flight is two events, which Chrome joins by category and id.
        const std::string both = absl::StrCat(what, ",\"cat\":\"flight\",\"id\":\"", process, ".", ++flight, "\"");
        // The end comes first, so that the lines below write begin and labels for both kinds. Viewers sort by time.
        absl::StrAppend(&json, "{\"ph\":\"e", both);
        AppendMicroseconds(",\"ts\":", event.end_ns, &json);
        absl::StrAppend(&json, "},\n{\"ph\":\"b", both);
      }
      AppendMicroseconds(",\"ts\":", event.begin_ns, &json);
      AppendLabels(event.labels, track.options_.peer, &json);
      absl::StrAppend(&json, "},\n");
    }
  }
  AppendMetadata("process_name", in_process,
                 absl::StrCat("\"name\":\"", RoleName(options_.role), " ", options_.number, "\""), &json);
  json.resize(json.size() - 2);  // the last comma
  absl::StrAppend(&json, "\n],\"otherData\":{\"role\":\"", RoleName(options_.role), "\",\"number\":", options_.number,
                  ",\"host\":", Quoted(HostName()), ",\"boot_id\":", Quoted(BootId()),
                  ",\"wall_minus_monotonic_us\":", WallMinusMonotonicMicroseconds(),
                  ",\"dropped_events\":", dropped_count, "}}\n");
  return json;
}

}  // namespace starring
