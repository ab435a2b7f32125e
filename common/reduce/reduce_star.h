// The star: every rank sends its contribution to a slice (star_pieces.h) straight to the slice's owner, and gets the
// sum back. The ranks are the owners (sum_owner.h), or servers are (sum_server.h).
//
// Cost of L elements with N ranks as owners: each sends and receives 2 L (N - 1) / N elements, as in a ring, but only
// two messages follow one after the other; it adds L (N - 1) / N elements. With S servers each rank sends and receives
// L elements, and each server N L / S.
//
// A rank's contribution leaves from its array, and the answer arrives at the same place. Both are posted together: the
// answer is sent when the contribution has been read.
//
// There is no deadlock. Take the first piece, in the order of reductions, that has not been answered by its owner, on a
// rank that has begun its reduction. All earlier pieces of that owner are answered, so it has a place for this one, and
// every rank sends its contribution when it begins the reduction.
#ifndef STARRING_COMMON_REDUCE_REDUCE_STAR_H_
#define STARRING_COMMON_REDUCE_REDUCE_STAR_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "common/reduce/piece_memory.h"
#include "common/reduce/reduce_machine.h"
#include "common/reduce/reduction.h"
#include "common/reduce/star_pieces.h"
#include "common/reduce/sum_owner.h"

namespace starring {

class ReduceStar final : public ReduceMachine {
 public:
  struct Options {
    Transport* transport = nullptr;
    int server_count = 0;  // 0: the ranks are the owners
    // Where this rank adds. REQUIRES: present, unless there are servers.
    std::optional<PieceMemory> memory;
    // The memory of each owner, mapped by this process; this rank's is `memory`. Empty: messages have the elements.
    std::vector<PieceMemory> shared;
  };
  // REQUIRES: the objects to which the options refer outlive the machine.
  explicit ReduceStar(Options options);

 private:
  // Pieces of one reduction that wait for an owner.
  struct Waiting {
    int64_t number = 0;
    std::span<std::byte> rest;
    StarTags tags;
  };
  // Pieces to one owner.
  struct Outbox {
    std::deque<Waiting> waiting;  // oldest first
    // By place of the owner's memory: the piece that is sent and not answered; empty: none.
    std::array<std::span<std::byte>, kPiecesOnTheirWay> asked;
    int next_place = 0;  // for the next piece
  };

  void Start(const Reduction& reduction) override;
  void Advance(uint64_t operation) override;

  void Ask(const Reduction& reduction, int owner);
  void Post(int owner);
  void TakeAnswer(int owner, int place);
  int owner_count() const { return server_count() > 0 ? server_count() : worker_count(); }
  int RankOf(int owner) const { return server_count() > 0 ? worker_count() + owner : owner; }

  const Options options_;
  std::vector<Outbox> outboxes_;      // by owner
  std::optional<SumOwner> own_sums_;  // what this rank owns
};

}  // namespace starring

#endif  // STARRING_COMMON_REDUCE_REDUCE_STAR_H_
