// Finds out why a server's job is stuck and says so: hears the workers' progress, asks those that are not heard when
// nothing arrives any more, and tells the log and the waiting workers who keeps them waiting. Knows no gRPC; the time
// is passed in.
//
// Thread safety: one thread.
#ifndef STARRING_SERVER_STALL_WATCH_H_
#define STARRING_SERVER_STALL_WATCH_H_

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "common/progress_state.h"
#include "common/roll_call.h"

namespace starring {

class StallWatch {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Options {
    int world_size = 1;
    StallTimes times;
    Time now;
    // Sends a question for its progress to a worker, if it has a connection.
    std::function<void(int rank)> ask;
    // Sends a line to a worker: who keeps the job waiting, or, empty, that it goes on.
    std::function<void(int rank, const std::string& text)> tell;
    std::function<void(const std::string&)> log;  // null: no log
  };
  explicit StallWatch(Options options);

  void OnProgress(int rank, const WorkState& state, Time now) { roll_.OnHeard(rank, state, now); }
  // Something other than progress came from a worker: the job moves.
  void OnArrival(Time now);

  // Nothing has arrived for so long that Look has something to do.
  bool IsQuiet(Time now) const { return options_.times.enabled() && now - last_arrival_ >= options_.times.ask_after(); }
  // `waits_for`: what workers wait for; empty: nothing.
  void Look(const std::string& waits_for, Time now);

  // ": rank 1 does not answer: ...", for the message of an expired deadline; empty if no root is known.
  std::string DescribeRoot(Time now) const;

 private:
  void TellOthers(const std::string& text) const;

  const Options options_;
  RollCall roll_;
  Time last_arrival_;
  bool is_open_ = false;       // a stall has been reported and is not over
  std::vector<int> culprits_;  // of it: they are not told
};

}  // namespace starring

#endif  // STARRING_SERVER_STALL_WATCH_H_
