#include "common/host/log.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"

namespace starring {
namespace {

// How long a line that comes again and again is only counted.
constexpr absl::Duration kCountedFor = absl::Minutes(1);

// The wall clock's: people compare stamps with other logs.
absl::Time Now() { return absl::FromChrono(std::chrono::system_clock::now()); }

absl::string_view LevelText(LogLevel level) {
  switch (level) {
    case LogLevel::kWarning:
      return "warning: ";
    case LogLevel::kError:
      return "error: ";
    default:
      return "";
  }
}

struct ProcessLog {
  Mutex mutex;
  LogLines lines ABSL_GUARDED_BY(mutex) = LogLines("starring");
  std::string clear ABSL_GUARDED_BY(mutex);
};

// Never destroyed: a thread may say something while the process ends.
ProcessLog& TheLog() {
  static ProcessLog* const log = new ProcessLog;
  return *log;
}

}  // namespace

std::string LogStamp(LogTime time, absl::Time now) {
  const bool has_stamp = time == LogTime::kIso || (time == LogTime::kAuto && isatty(STDERR_FILENO) == 0);
  return has_stamp ? absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ ", now, absl::UTCTimeZone()) : "";
}

std::string LogStampNow(LogTime time) { return LogStamp(time, Now()); }

std::string LogLines::Form(absl::string_view text, absl::Time now) const {
  return absl::StrCat(LogStamp(time_, now), name_, ": ", text, "\n");
}

std::string LogLines::Take(absl::string_view line, LogLevel level, absl::Time now) {
  std::string text = absl::StrCat(LevelText(level), line);
  const bool is_repeated = text == last_;
  if (is_repeated) ++count_;
  if (is_repeated && now - shown_ < kCountedFor) return "";
  std::string shown;
  if (count_ > 0) {
    const char* const times = count_ == 1 ? " more time" : " more times";
    shown = Form(absl::StrCat("the line before came ", count_, times), now);
  }
  // A line that still repeats after kCountedFor is shown as its count alone.
  if (!is_repeated) absl::StrAppend(&shown, Form(text, now));
  last_ = std::move(text);
  shown_ = now;
  count_ = 0;
  return shown;
}

LogTime AskedLogTime(int argc, const char* const* argv) {
  LogTime time = LogTime::kAuto;
  // After -- come the flags of other processes.
  for (int i = 1; i < argc && absl::string_view(argv[i]) != "--"; ++i) {
    for (const Choice<LogTime>& choice : kLogTimes) {
      if (absl::string_view(argv[i]) == absl::StrCat("--log_time=", choice.name)) time = choice.value;
    }
  }
  return time;
}

void NameLog(const std::string& name, LogTime time) {
  ProcessLog& log = TheLog();
  const MutexLock lock(log.mutex);
  log.lines = LogLines(name, time);
}

void ClearBeforeLog(const std::string& clear) {
  ProcessLog& log = TheLog();
  const MutexLock lock(log.mutex);
  log.clear = clear;
}

void Log(absl::string_view line, LogLevel level) {
  ProcessLog& log = TheLog();
  // The lock is held until the line is written, so lines come in the order of their stamps.
  const MutexLock lock(log.mutex);
  const std::string text = log.lines.Take(line, level, Now());
  // One call, so that lines of other processes do not come between.
  if (!text.empty()) std::fputs(absl::StrCat(log.clear, text).c_str(), stderr);
}

}  // namespace starring
