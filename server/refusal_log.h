// The lines of a server's log about requests that it refused. A stranger must not fill a disk or a terminal with them:
// of each period of limits.h kLogPeriodMs the first kLogRefusalsMax are shown, the others counted.
//
// Thread safety: one thread.
#ifndef STARRING_SERVER_REFUSAL_LOG_H_
#define STARRING_SERVER_REFUSAL_LOG_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace starring {

class RefusalLog {
 public:
  using Clock = std::chrono::steady_clock;
  // `log` takes the lines that are shown.
  explicit RefusalLog(std::function<void(const std::string&)> log) : log_(std::move(log)) {}

  void Add(const std::string& line, Clock::time_point now);

 private:
  const std::function<void(const std::string&)> log_;
  int64_t count_ = 0;  // since
  Clock::time_point since_;
};

}  // namespace starring

#endif  // STARRING_SERVER_REFUSAL_LOG_H_
