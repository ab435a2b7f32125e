// Who keeps a job waiting. A process that waits for others collects here what it hears of them, asks those that it has
// not heard lately, and finds the *root*: not the rank it waits for, which may itself wait, but the one that all wait
// for in the end.
//
//   A rank that does not answer a question in time is silent: its process is stopped, or no connection reaches it.
//   Silent ranks are the root. Else it is the ranks that compute, read or write instead of waiting in the exchange,
//   those with the lowest step; but only if they have been in one phase for as long as the report takes: a job that is
//   slow and goes on has no root. If all wait in the exchange, the way between them is at fault.
//
// Thread safety: one thread.
#ifndef STARRING_COMMON_ROLL_CALL_H_
#define STARRING_COMMON_ROLL_CALL_H_

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "common/progress_state.h"

namespace starring {

// When a wait becomes a stall. All follow from the time after which it is reported; 0: never.
struct StallTimes {
  using Milliseconds = std::chrono::milliseconds;
  Milliseconds report_after{0};

  bool enabled() const { return report_after.count() > 0; }
  // Asking begins early enough for the answers to be there when the report is due.
  Milliseconds ask_after() const { return report_after / 2; }
  // How long a process may take to answer. Not below what an idle process on busy cores needs.
  Milliseconds patience() const { return std::max(report_after / 4, Milliseconds(300)); }
};

class RollCall {
 public:
  using Time = std::chrono::steady_clock::time_point;

  RollCall(int world_size, StallTimes times) : times_(times), ranks_(world_size) {}

  // `rank` itself says so, now.
  void OnHeard(int rank, const WorkState& state, Time now);
  // Another rank heard it from `rank` at `heard_at`: no answer to a question, but news if it is newer.
  void OnHearsay(int rank, const WorkState& state, Time heard_at);

  // Ranks that have not been heard lately and have no question open; the caller asks them now.
  std::vector<int> TakeRanksToAsk(Time now);

  struct Root {
    std::vector<int> ranks;  // empty: all wait in the exchange
    std::string sentence;    // "rank 1 does not answer: when last heard, 4.2 s ago, it was in forward of step 12"
  };
  // Null while answers may still come, and if the job goes on slowly.
  std::optional<Root> FindRoot(Time now) const;

  bool IsSilent(int rank, Time now) const;
  // What is known of one rank: a part of Root::sentence. REQUIRES: what it says is so.
  std::string DescribeSilent(int rank, Time now) const;
  std::string DescribeBusy(int rank, Time now) const;

  // When the newest word of `rank` was said, and that; null: never heard.
  struct Heard {
    WorkState state;
    Time at;
  };
  const std::optional<Heard>& heard(int rank) const { return ranks_[rank].heard; }

 private:
  struct Rank {
    std::optional<Heard> heard;
    std::optional<Time> answered;  // when it last spoke itself
    std::optional<Time> asked;     // a question is open
  };

  std::chrono::milliseconds AgeOf(const Heard& heard, Time now) const;
  // Describes up to a few of `ranks`.
  template <typename Describe>
  std::string DescribeAll(const std::vector<int>& ranks, Describe describe) const;

  const StallTimes times_;
  std::vector<Rank> ranks_;
};

// "4.2 s".
std::string SecondsText(std::chrono::nanoseconds duration);
// "stuck for 4.2 s (step 12, bucket 3): rank 1 does not answer: ..."
std::string StallSentence(std::chrono::nanoseconds waited, const std::string& waits_for, const std::string& root);
// "the job goes on after 7.3 s"
std::string GoesOnSentence(std::chrono::nanoseconds waited);

}  // namespace starring

#endif  // STARRING_COMMON_ROLL_CALL_H_
