// Who has sent its part of something that needs all workers, and where each waits for the answer.
//
// Thread safety: one thread.
#ifndef STARRING_SERVER_COLLECTIVE_WAIT_H_
#define STARRING_SERVER_COLLECTIVE_WAIT_H_

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace starring {

// One stream between a worker and this server.
struct LaneId {
  int rank = 0;
  int lane = 0;
  friend auto operator<=>(const LaneId&, const LaneId&) = default;
};

class CollectiveWait {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit CollectiveWait(int world_size = 0) : lanes_(world_size) {}

  // `from` has sent its part, perhaps again: the answer goes to where it came from last. True the first time.
  bool Add(LaneId from, Time now);

  int count() const { return count_; }
  bool Has(int rank) const { return lanes_[rank].has_value(); }
  bool empty() const { return count_ == 0; }
  bool complete() const { return count_ == static_cast<int>(lanes_.size()); }
  // When the first part came. REQUIRES: !empty().
  Time since() const { return since_; }
  // "rank 1 has" or "ranks 1, 3 have".
  std::string DescribeMissing() const;

  // Everybody who waits, by rank.
  std::vector<LaneId> Waiting() const;
  // The same, and nobody waits any more.
  std::vector<LaneId> Take();

 private:
  std::vector<std::optional<LaneId>> lanes_;  // by rank
  int count_ = 0;
  Time since_;
};

}  // namespace starring

#endif  // STARRING_SERVER_COLLECTIVE_WAIT_H_
