// An owner of a star that only adds: takes the contributions of all ranks to its slices (star_pieces.h), adds each
// piece as a tree, and sends the sum to all ranks. Either the ranks or the servers are the owners.
//
// Pieces go through the places of a PieceMemory, in order. A rank's own contribution is in its array, where the sum
// goes; a server has neither.
//
// A rank sends piece i + kPiecesOnTheirWay when it has the answer to piece i. So nearly all contributions find their
// place free. A contribution that comes earlier, or for a reduction that this process has still to begin, stays with
// the transport: at most 2 kPiecesOnTheirWay pieces of each rank.
//
// Thread safety: none; one thread at a time.
#ifndef STARRING_COMMON_REDUCE_SUM_OWNER_H_
#define STARRING_COMMON_REDUCE_SUM_OWNER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "common/base/element_range.h"
#include "common/reduce/piece_memory.h"
#include "common/reduce/reduction.h"
#include "common/reduce/star_pieces.h"
#include "common/transport/transport.h"

namespace starring {

// The tags of a reduction's contributions and answers, the same at both ends. `tag_max` is the transport's.
struct StarTags {
  int contribution = 0;
  int answer = 0;
};
StarTags StarTagsOf(const ReductionHead& head, int tag_max);

class SumOwner final : public Transport::Poster {
 public:
  struct Options {
    Transport* transport = nullptr;  // outlives the owner
    int worker_count = 1;            // the first ranks of the world, which contribute
    PieceMemory memory;
    bool is_shared = false;  // the other ranks have mapped the memory: messages have no bytes
    // A slice of the reduction with this number is over: its sums have been sent to all ranks.
    std::function<void(int64_t number)> on_answered;
    // A contribution has come, or an answer has gone. Null: not wanted.
    std::function<void()> on_progress;
  };
  explicit SumOwner(Options options);

  // Begins a slice, in the order of numbers on all processes. At a server `reduction.data` is null. REQUIRES: the slice
  // is not empty.
  void Begin(const Reduction& reduction, ElementRange slice);

  void OnCompletion(uint64_t operation) override;

 private:
  struct Slice {
    Reduction reduction;
    ElementRange rest;     // has no place yet
    int64_t unsummed = 0;  // pieces in places
    int64_t sending = 0;   // answers
  };
  struct Place {
    Slice* slice = nullptr;  // null: the place is free
    ElementRange range;      // of the reduction
    int missing = 0;         // contributions
    int sending = 0;         // answers that are sent from the place
  };

  void FillPlaces();
  void Add(int index);
  void Answer(int index, std::span<const std::byte> sum);
  void EndIfOver(const Slice& slice);
  // The i-th rank after this process, without this process: so not all owners begin with the same rank.
  int Other(int i) const;

  const Options options_;
  Transport& transport_;
  const int other_count_;  // ranks whose contributions come as messages
  std::array<Place, kPiecesOnTheirWay> places_;
  int next_place_ = 0;               // for the next piece
  int next_sum_ = 0;                 // of the next piece that is added: answers must leave in the order of pieces
  std::map<int64_t, Slice> slices_;  // by the reduction's number
  std::vector<const std::byte*> contributions_;
};

}  // namespace starring

#endif  // STARRING_COMMON_REDUCE_SUM_OWNER_H_
