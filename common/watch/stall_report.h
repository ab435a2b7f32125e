// Prints which process keeps this worker waiting: one line when a stall is known, and one when the job goes on. Several
// sources, for instance the servers of a star, may report the same stall; only the first report is printed.
//
// Thread safety: one thread.
#ifndef STARRING_COMMON_WATCH_STALL_REPORT_H_
#define STARRING_COMMON_WATCH_STALL_REPORT_H_

#include <chrono>
#include <functional>
#include <set>
#include <string>
#include <utility>

#include "common/watch/progress_state.h"
#include "common/watch/roll_call.h"

namespace starring {

// The settings by which an exchange reports a stall and answers other processes.
struct StallOptions {
  StallTimes times;
  // The progress of the trainer's thread; outlives the exchange. Null: only waits in the exchange are known.
  const ProgressState* progress = nullptr;
  // Prints a line; called by a thread of the exchange or by the trainer's. Null: nothing is printed.
  std::function<void(const std::string&)> say;
  // Gets the state that another process reports of itself. Null: the state is only kept for the report.
  std::function<void(int rank, const WorkState& state)> on_heard = nullptr;
};

class StallReport {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit StallReport(std::function<void(const std::string&)> say) : say_(std::move(say)) {}

  // `source` has found a stall that began at `since`.
  void Open(int source, Time since, const std::string& sentence);
  // For `source` the stall is over. No effect if `source` has reported none.
  void Close(int source, Time now);
  bool IsOpen(int source) const { return open_.contains(source); }

 private:
  const std::function<void(const std::string&)> say_;
  std::set<int> open_;
  Time since_;  // when the stall began that was reported first; while one is open
};

}  // namespace starring

#endif  // STARRING_COMMON_WATCH_STALL_REPORT_H_
