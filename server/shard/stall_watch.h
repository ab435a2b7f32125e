// Finds out which worker keeps a server's job from going on, and says so. Workers report their progress; when no other
// message arrives any more, those that have not reported are asked. The log and the waiting workers are told the
// culprit. Knows nothing of gRPC; the time is passed in.
//
// Thread safety: one thread.
#ifndef STARRING_SERVER_SHARD_STALL_WATCH_H_
#define STARRING_SERVER_SHARD_STALL_WATCH_H_

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "common/watch/progress_state.h"
#include "common/watch/roll_call.h"

namespace starring {

class StallWatch {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Options {
    int world_size = 1;
    StallTimes times;
    Time now;
    // Asks a worker for its progress, if it has a connection.
    std::function<void(int rank)> ask;
    // Tells a worker which worker keeps the job waiting, or, by an empty text, that the job goes on.
    std::function<void(int rank, const std::string& text)> tell;
    std::function<void(const std::string&)> log;  // null: no log
  };
  explicit StallWatch(Options options);

  void OnProgress(int rank, const WorkState& state, Time now) { roll_.OnHeard(rank, state, now); }
  // A message other than progress arrived from a worker: the job goes on.
  void OnArrival(Time now);

  // Whether Look has something to do: nothing has arrived for long.
  bool IsQuiet(Time now) const { return options_.times.enabled() && now - last_arrival_ >= options_.times.ask_after(); }
  // `waits_for`: what the workers wait for; empty: they wait for nothing.
  void Look(const std::string& waits_for, Time now);

  // ": rank 1 does not answer: ...", for the message of an expired deadline; empty if the cause is unknown. While a new
  // question is open, it is the cause that the stall's report has named.
  std::string DescribeRoot(Time now) const;

 private:
  void TellOthers(const std::string& text) const;

  const Options options_;
  RollCall roll_;
  Time last_arrival_;
  bool is_open_ = false;       // a stall has been reported and is not over
  std::vector<int> culprits_;  // the ranks that caused it: they are not told
  std::string cause_;          // as the report has it
};

}  // namespace starring

#endif  // STARRING_SERVER_SHARD_STALL_WATCH_H_
