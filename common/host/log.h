// The lines that a program says to people, on standard error. All have one form:
//
//     2026-11-28T16:50:05.123Z worker 0: warning: the text
//
// The stamp is UTC, so that the logs of several hosts can be merged. A line that comes again at once is not shown but
// counted, and the count is shown before the next other line, at least once a minute.
//
// Lines that other programs read go to standard output, and are not the log's.
//
// Thread safety: any thread may call any function.
#ifndef STARRING_COMMON_HOST_LOG_H_
#define STARRING_COMMON_HOST_LOG_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/flags/flag_table.h"

namespace starring {

// kAuto: stamps, unless standard error is a terminal.
enum class LogTime { kAuto, kIso, kNone };
inline constexpr Choice<LogTime> kLogTimes[] = {
    {"auto", LogTime::kAuto}, {"iso", LogTime::kIso}, {"none", LogTime::kNone}};
inline constexpr char kLogTimeMeaning[] = "time stamps on standard error; auto: if that is no terminal";

enum class LogLevel { kNote, kWarning, kError };

// "2026-11-28T16:50:05.123Z ", or nothing if lines have no stamps.
std::string LogStamp(LogTime time, absl::Time now);
std::string LogStampNow(LogTime time);

// Makes the text of each line, and counts those that come again.
class LogLines {
 public:
  explicit LogLines(std::string name, LogTime time = LogTime::kAuto) : name_(std::move(name)), time_(time) {}

  // The text to show, with its line ends; empty if the line is only counted.
  std::string Take(absl::string_view line, LogLevel level, absl::Time now);

 private:
  std::string Form(absl::string_view text, absl::Time now) const;

  std::string name_;  // of the process: "worker 0"
  LogTime time_;
  std::string last_;  // text, with its level
  absl::Time shown_ = absl::InfinitePast();
  int64_t count_ = 0;  // of the last line, since it was shown
};

// --log_time of a command line that may be wrong elsewhere.
LogTime AskedLogTime(int argc, const char* const* argv);

// The log of this process. Until NameLog its lines have the name "starring".
void NameLog(const std::string& name, LogTime time = LogTime::kAuto);
// Where a live row of progress is drawn on the terminal, `clear` removes it before each line.
void ClearBeforeLog(const std::string& clear);
void Log(absl::string_view line, LogLevel level = LogLevel::kNote);

}  // namespace starring

#endif  // STARRING_COMMON_HOST_LOG_H_
