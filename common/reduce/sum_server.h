// A server of a star that only adds: learns from the ranks' heads (reduction.h) what they add, and owns its slice of
// each reduction (sum_owner.h). It keeps nothing of a reduction that is over.
//
// Heads. Every rank sends the head of each reduction before its contributions, and one that ends its part of the group.
// The first head of a reduction counts, and those of the other ranks are compared with it.
//
// Thread safety: none; one thread at a time.
#ifndef STARRING_COMMON_REDUCE_SUM_SERVER_H_
#define STARRING_COMMON_REDUCE_SUM_SERVER_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "common/reduce/piece_memory.h"
#include "common/reduce/reduction.h"
#include "common/reduce/sum_owner.h"
#include "common/transport/transport.h"

namespace starring {

class SumServer final : public Transport::Poster {
 public:
  struct Options {
    Transport* transport = nullptr;  // outlives the server; its last ranks are servers, this one among them
    int server_count = 1;
    PieceMemory memory;
    bool is_shared = false;  // as SumOwner::Options
  };
  // Posts its first operations.
  explicit SumServer(const Options& options);

  // All ranks have ended their part, and no sum is under way.
  bool is_over() const { return ended_count_ == worker_count_ && slice_count_ == 0; }
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
  void BeginSlice(const Reduction& reduction);

  Transport& transport_;
  const int server_count_;
  const int worker_count_;
  SumOwner owner_;
  std::vector<Rank> ranks_;
  std::map<int64_t, Begun> begun_;  // by number
  int ended_count_ = 0;             // ranks
  int64_t slice_count_ = 0;         // under way
  absl::Status status_;
};

}  // namespace starring

#endif  // STARRING_COMMON_REDUCE_SUM_SERVER_H_
