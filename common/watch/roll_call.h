// Finds the rank that keeps a job waiting. A process that waits for others collects here what it hears from them, asks
// those that it has not heard from lately, and finds the *root*: not the rank that it waits for, which may itself be
// waiting, but the rank that all others wait for in the end.
//
//   A rank that does not answer a question in time is silent: its process is stopped, or no connection reaches it.
//   Silent ranks are the root. If there are none, the root is those ranks of the lowest step that compute, read or
//   write instead of waiting in the exchange, provided that they have been in one phase for as long as the report
//   takes: a job that is slow but goes on has no root. If all ranks wait in the exchange, the network between them is
//   at fault.
//
// Thread safety: one thread.
#ifndef STARRING_COMMON_WATCH_ROLL_CALL_H_
#define STARRING_COMMON_WATCH_ROLL_CALL_H_

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "common/base/limits.h"
#include "common/watch/progress_state.h"

namespace starring {

// When a wait becomes a stall. All times follow from the time after which a stall is reported; 0: never.
struct StallTimes {
  using Milliseconds = std::chrono::milliseconds;
  Milliseconds report_after{0};

  bool enabled() const { return report_after.count() > 0; }
  // Questions are asked early enough that the answers have arrived when the report is due.
  Milliseconds ask_after() const { return report_after / 2; }
  // How long a process may take to answer: at least as long as an idle process needs on busy cores.
  Milliseconds patience() const { return std::max(report_after / 4, Milliseconds(300)); }
};

class RollCall {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Ranks from `worker_count` on are servers, and are called so.
  RollCall(int world_size, StallTimes times, int worker_count = kWorldSizeMax)
      : times_(times), worker_count_(worker_count), ranks_(world_size) {}

  // `rank` itself reported `state` now.
  void OnHeard(int rank, const WorkState& state, Time now);
  // Another rank heard `state` from `rank` at `heard_at`. That answers no question, but is kept if it is newer.
  void OnHearsay(int rank, const WorkState& state, Time heard_at);

  // Ranks that have not been heard from lately and have no open question. The caller asks them now.
  std::vector<int> TakeRanksToAsk(Time now);

  struct Root {
    std::vector<int> ranks;  // empty: all wait in the exchange
    std::string sentence;    // "rank 1 does not answer: when last heard, 4.2 s ago, it was in forward of step 12"
  };
  // Empty while answers may still arrive, and if the job goes on slowly.
  std::optional<Root> FindRoot(Time now) const;

  bool IsSilent(int rank, Time now) const;
  // The part of Root::sentence about one rank. REQUIRES: the rank is silent, or has been heard from, respectively.
  std::string DescribeSilent(int rank, Time now) const;
  std::string DescribeBusy(int rank, Time now) const;

  // The newest report of `rank`, and when it was made; empty if there was none.
  struct Heard {
    WorkState state;
    Time at;
  };
  const std::optional<Heard>& heard(int rank) const { return ranks_[rank].heard; }

 private:
  struct Rank {
    std::optional<Heard> heard;
    std::optional<Time> answered;  // when the rank itself last reported
    std::optional<Time> asked;     // a question is open
  };

  std::chrono::milliseconds AgeOf(const Heard& heard, Time now) const;
  // Describes up to a few of `ranks`.
  template <typename Describe>
  std::string DescribeAll(const std::vector<int>& ranks, Describe describe) const;

  const StallTimes times_;
  const int worker_count_;
  std::vector<Rank> ranks_;
};

// "4.2 s".
std::string SecondsText(std::chrono::nanoseconds duration);
// "rank 1", "ranks 1, 3", or the first kRanksNamedMax of limits.h: "ranks 1, 2, 3 and 983 more". A status must fit into
// a line, and into the trailers of a gRPC call. REQUIRES: `ranks` is not empty.
std::string NameRanks(const std::vector<int>& ranks);
// "rank 1"; "server 0" for rank `worker_count`: where servers are ranks too, they come after the workers.
std::string ProcessName(int rank, int worker_count);
// The same of several, as NameRanks: "ranks 1, 3", or with a server among them "rank 1, server 0".
std::string NameProcesses(const std::vector<int>& ranks, int worker_count);
// "stuck for 4.2 s (step 12, bucket 3): rank 1 does not answer: ..."
std::string StallSentence(std::chrono::nanoseconds waited, const std::string& waits_for, const std::string& root);
// "the job goes on after 7.3 s"
std::string GoesOnSentence(std::chrono::nanoseconds waited);

}  // namespace starring

#endif  // STARRING_COMMON_WATCH_ROLL_CALL_H_
