// Says on a worker who keeps it waiting: one line when a stall is known, one when the job goes on. Several sources, for
// instance the servers of a star, may report the same stall: the first is heard.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_EXCHANGE_STALL_REPORT_H_
#define STARRING_WORKER_EXCHANGE_STALL_REPORT_H_

#include <chrono>
#include <functional>
#include <set>
#include <string>
#include <utility>

#include "common/progress_state.h"
#include "common/roll_call.h"

namespace starring {

// What an exchange needs to report a stall and to answer others.
struct StallOptions {
  StallTimes times;
  // Of the thread that trains; outlives the exchange. Null: nothing is known but whether it waits in the exchange.
  const ProgressState* progress = nullptr;
  // Takes a line for people; called by a thread of the exchange or by the trainer's. Null: no lines.
  std::function<void(const std::string&)> say;
};

class StallReport {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit StallReport(std::function<void(const std::string&)> say) : say_(std::move(say)) {}

  // `source` has found a stall that began at `since`.
  void Open(int source, Time since, const std::string& sentence);
  // For `source` it is over. No effect if it has reported none.
  void Close(int source, Time now);
  bool IsOpen(int source) const { return open_.contains(source); }

 private:
  const std::function<void(const std::string&)> say_;
  std::set<int> open_;
  Time since_;  // while one is open
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_STALL_REPORT_H_
