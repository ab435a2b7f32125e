// Whether a server that a worker waits for still answers: asks it after a while, and finds it silent when nothing comes
// back. Knows no gRPC; the time is passed in.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_EXCHANGE_STAR_SERVER_WATCH_H_
#define STARRING_WORKER_EXCHANGE_STAR_SERVER_WATCH_H_

#include <chrono>
#include <cstdint>
#include <optional>

#include "common/roll_call.h"

namespace starring {

class ServerWatch {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit ServerWatch(StallTimes times) : times_(times) {}

  // What there is to see of a server.
  struct Seen {
    int64_t signs_of_life = 0;          // a count: it grows whenever something comes from there, or is taken there
    std::optional<Time> waiting_since;  // of the oldest request without an answer
  };
  // kAsk: the caller asks the server whether it answers. kSilent: it does not, and the report is due. kAnswers: a
  // silent one answers again, or nothing is wanted of it any more.
  enum class Action { kNone, kAsk, kSilent, kAnswers };
  Action Look(const Seen& seen, Time now);

  // A question is open for longer than a process takes to answer.
  bool IsUnanswered(Time now) const { return asked_.has_value() && now - *asked_ >= times_.patience(); }
  // Since when nothing has come; of a server that is silent.
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
