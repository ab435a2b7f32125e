// Decides whether a server for which a worker waits still answers: the worker asks the server after a while, and the
// server is silent if no sign of life follows. The class knows no gRPC, and the time is passed in.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_EXCHANGE_STAR_SERVER_WATCH_H_
#define STARRING_WORKER_EXCHANGE_STAR_SERVER_WATCH_H_

#include <chrono>
#include <cstdint>
#include <optional>

#include "common/watch/roll_call.h"

namespace starring {

class ServerWatch {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit ServerWatch(StallTimes times) : times_(times) {}

  // A worker's view of one server.
  struct Seen {
    int64_t signs_of_life = 0;          // grows with every message that the server sends or takes
    std::optional<Time> waiting_since;  // since when the oldest request is unanswered; null: none is
  };
  // kAsk: the caller must ask the server for a sign of life. kSilent: the server does not answer, and the report is
  // due. kAnswers: a silent server answers again, or no request waits for it any more.
  enum class Action { kNone, kAsk, kSilent, kAnswers };
  Action Look(const Seen& seen, Time now);

  // True if a question has been unanswered for longer than a working process takes.
  bool IsUnanswered(Time now) const { return asked_.has_value() && now - *asked_ >= times_.patience(); }
  // Since when a silent server has given no sign of life.
  Time quiet_since() const { return quiet_since_; }

 private:
  Action Rest();

  const StallTimes times_;
  int64_t signs_of_life_ = 0;
  Time last_sign_;
  Time quiet_since_;
  std::optional<Time> asked_;
  bool silent_ = false;
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_STAR_SERVER_WATCH_H_
