// Keeps what one rank of a ring knows about the progress of the others, and makes the line that the rank prints when it
// is stuck. PeerWatch knows no transport and no clock: notices leave through a function, and the time is passed in.
//
// Progress. A rank sends its step and phase to its two neighbours when they have changed, at most four times a second:
// two small messages, however many ranks there are. Servers that are ranks receive the same messages; they send none. A
// rank that calls the roll receives, from every rank that answers, its progress and the last reports of its neighbours.
// So the caller also learns where a rank was that no longer answers.
//
// Thread safety: one thread at a time.
#ifndef STARRING_COMMON_TRANSPORT_PEER_WATCH_H_
#define STARRING_COMMON_TRANSPORT_PEER_WATCH_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/watch/progress_state.h"
#include "common/watch/roll_call.h"
#include "common/watch/stall_report.h"

namespace starring {

// A notice's kind is its first byte. kHere answers kRollCall. kVerdict passes on what another rank's kAbort said.
enum class NoticeKind : char { kAbort = 'A', kVerdict = 'V', kRollCall = 'R', kHere = 'H', kProgress = 'P' };

class PeerWatch {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Options {
    int rank = 0;
    int world_size = 1;
    int server_count = 0;  // of the world: the last ranks
    StallOptions stall;
    std::function<void(int peer, NoticeKind kind, const std::string& text)> send;
  };
  explicit PeerWatch(Options options);

  // Counts a call that all ranks make in the same order. The roll call compares the counts.
  void CountCall() { ++call_count_; }

  // Sends this rank's progress to the neighbours, if it has changed and the last message is a quarter of a second old.
  void TellProgress(Time now);
  // Takes a notice other than kAbort and kVerdict. A notice that cannot be read is ignored.
  void OnNotice(int peer, NoticeKind kind, std::string_view text, Time now);

  // This rank waits, and nothing has arrived since `since`. EndWait: something has arrived, or the wait is over.
  void BeginWait(Time since) { waiting_since_ = since; }
  void EndWait(Time now);
  // While `is_busy` returns true, a wait is for work of this rank itself, which its progress names. Null: it never is.
  void set_is_busy(std::function<bool()> is_busy) { is_busy_ = std::move(is_busy); }
  // To be called again and again while this rank waits for `what`: asks other ranks, and reports the stall once its
  // root is known. Cheap when there is nothing to do.
  void Look(const std::string& what, Time now);

  // For the message of an expired deadline. CallRoll asks every rank. When all have answered or patience() is over,
  // DescribeMissing names the ranks that are missing or behind. If AllWait, this rank cannot name any. Then two others
  // may have lost each other: each of them says so within patience_for_others().
  void CallRoll(Time now);
  bool RollIsComplete() const;
  bool AllWait() const;
  std::string DescribeMissing(Time now) const;
  std::chrono::milliseconds patience() const;
  std::chrono::milliseconds patience_for_others() const;

 private:
  // The other workers next to this one in the order of ranks; a server has none.
  std::set<int> Neighbours() const;
  WorkState MyWork(Time now) const;
  std::string DescribeMe(Time now) const;
  void Hear(int peer, const WorkState& work, Time now);
  // The ranks that all others wait for, as far as their answers show. REQUIRES: the roll is complete.
  std::vector<int> FindBehind() const;
  int64_t MostCalls() const;
  void OnHere(int peer, std::string_view text, Time now);

  const Options options_;
  const int worker_count_;
  RollCall roll_;
  StallReport report_;
  int64_t call_count_ = 0;
  std::vector<int64_t> calls_;  // by rank: the call count in its answer, or kSilent
  std::optional<Time> waiting_since_;
  std::function<bool()> is_busy_;
  Time next_look_;
  Time next_tell_;
  std::pair<WorkPhase, int64_t> last_told_ = {WorkPhase::kUnknown, -1};
};

}  // namespace starring

#endif  // STARRING_COMMON_TRANSPORT_PEER_WATCH_H_
