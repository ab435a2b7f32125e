// A server of a star that only adds: learns from the ranks' heads (reduction.h) what they add, and owns its slice of
// each reduction (star.h). It keeps nothing of a reduction that is over.
//
// Heads. Every rank sends the head of each reduction before its contributions, and one that ends its part of the group.
// The first head of a reduction counts, and those of the other ranks are compared with it.
//
// Thread safety: none; one thread at a time.
#ifndef STARRING_COMMON_REDUCE_ARRAYS_SUM_SERVER_H_
#define STARRING_COMMON_REDUCE_ARRAYS_SUM_SERVER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/base/element_range.h"
#include "common/reduce/arrays/element_sum.h"
#include "common/reduce/arrays/reduce_star.h"
#include "common/reduce/arrays/reduction.h"
#include "common/reduce/star.h"
#include "common/reduce/star_sink.h"
#include "common/transport/transport.h"

namespace starring {

class SumServer final : public Transport::Poster, private StarSink {
 public:
  // Posts its first operations. REQUIRES: the objects to which the options refer outlive the server; this process is
  // one of server_count servers.
  explicit SumServer(const ReduceStarOptions& options);

  // All ranks have ended their part, and no sum is under way.
  bool is_over() const { return ended_count_ == worker_count_ && slices_.empty(); }
  // InvalidArgument once ranks disagree about a reduction; Internal if a head is none that a rank sends.
  const absl::Status& status() const { return status_; }

  void OnCompletion(uint64_t operation) override;

 private:
  // The head that a rank sends next.
  struct Rank {
    ReductionHead head;
    int64_t number = 0;
  };
  // A reduction that some ranks have begun.
  struct Begun {
    RankAndHead first;
    int rank_count = 0;
  };

  void PostHead(int rank);
  absl::Status TakeHead(int rank);
  Finished FinishAll(const StarSum& sum, const Output& output, std::span<std::byte* const> contributions) override;
  void OnDone(const StarSum& sum) override { slices_.erase(sum.number); }

  Transport& transport_;
  const int server_count_;
  const int worker_count_;
  Star star_;
  std::vector<Rank> ranks_;
  std::map<int64_t, Begun> begun_;       // by number
  std::map<int64_t, SumResult> slices_;  // under way, by number
  int ended_count_ = 0;                  // ranks
  absl::Status status_;
};

}  // namespace starring

#endif  // STARRING_COMMON_REDUCE_ARRAYS_SUM_SERVER_H_
