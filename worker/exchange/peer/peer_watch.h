// What one rank of a ring knows of the others' progress, and what it says when it is stuck. Knows no transport: notices
// go out by a function, and the time is passed in.
//
// Progress. A rank tells its two neighbours its step and phase when they have changed, a few times a second at most:
// two small messages, however many ranks there are. Who calls the roll gets from every rank that answers its own
// progress, and what it last heard of its neighbours: so all learn where a rank was that does not answer any more.
//
// Thread safety: one thread at a time.
#ifndef STARRING_WORKER_EXCHANGE_PEER_PEER_WATCH_H_
#define STARRING_WORKER_EXCHANGE_PEER_PEER_WATCH_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/progress_state.h"
#include "common/roll_call.h"
#include "worker/exchange/stall_report.h"

namespace starring {

// The kind of a notice is its first byte.
enum class NoticeKind : char { kAbort = 'A', kRollCall = 'R', kHere = 'H', kProgress = 'P' };

class PeerWatch {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Options {
    int rank = 0;
    int world_size = 1;
    StallOptions stall;
    std::function<void(int peer, NoticeKind kind, const std::string& text)> send;
  };
  explicit PeerWatch(Options options);

  // One more call of the exchange that all ranks make in the same order; the roll call compares these counts.
  void CountCall() { ++call_count_; }

  // Tells the neighbours, if it is time to and there is news.
  void TellProgress(Time now);
  // A notice other than kAbort. What cannot be read is ignored.
  void OnNotice(int peer, NoticeKind kind, std::string_view text, Time now);

  // This rank waits, and nothing has arrived since `since`; nothing until something arrives or the wait is over.
  void BeginWait(Time since) { waiting_since_ = since; }
  void EndWait();
  // While it waits, for `what`: asks, and reports a stall once its root is known. Cheap when there is nothing to do.
  void Look(const std::string& what, Time now);

  // For the message of an expired deadline: asks every rank; when all have answered or the patience is over,
  // DescribeMissing says who it is.
  void CallRoll(Time now);
  bool RollIsComplete() const;
  std::string DescribeMissing(Time now) const;
  std::chrono::milliseconds patience() const;

 private:
  int Neighbour(int distance) const { return (options_.rank + distance + options_.world_size) % options_.world_size; }
  WorkState MyWork(Time now) const;
  std::string DescribeMe(Time now) const;
  void OnHere(int peer, std::string_view text, Time now);

  const Options options_;
  RollCall roll_;
  StallReport report_;
  int64_t call_count_ = 0;
  std::vector<int64_t> calls_;  // by rank: its call count as it answered, or kSilent
  std::optional<Time> waiting_since_;
  Time next_look_;
  Time next_tell_;
  std::pair<WorkPhase, int64_t> last_told_ = {WorkPhase::kUnknown, -1};
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_PEER_WATCH_H_
