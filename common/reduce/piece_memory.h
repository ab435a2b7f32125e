// The memory in which an owner of a star adds pieces (star_pieces.h): a few places, each with an array for every rank's
// contribution and one for the sum. Ranks of the owner's host can map it: then they write their contributions into it
// and read the sums from it, and messages only say that this has happened.
//
// The messages decide which process may access an array when. A rank writes its contribution to piece i in place i mod
// kPiecesOnTheirWay when it has taken the sum of the piece before in that place; the owner writes the sum when it has
// all contributions. A process that has received a message sees what the sender wrote before it sent it: both calls
// enter the kernel, whose locks order the memory of both processes.
//
// Thread safety: immutable, but for the bytes.
#ifndef STARRING_COMMON_REDUCE_PIECE_MEMORY_H_
#define STARRING_COMMON_REDUCE_PIECE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/check.h"
#include "common/reduce/star_pieces.h"

namespace starring {

class PieceMemory {
 public:
  static constexpr int64_t BytesNeeded(int worker_count) {
    return kPiecesOnTheirWay * (int64_t{worker_count} + 1) * PieceBytes(worker_count);
  }

  // `memory` has BytesNeeded bytes, begins at a cache line, and outlives this object.
  PieceMemory(std::span<std::byte> memory, int worker_count) : memory_(memory), worker_count_(worker_count) {
    CHECK_GE(std::ssize(memory), BytesNeeded(worker_count));
  }

  // PieceBytes bytes each.
  std::span<std::byte> Contribution(int place, int rank) const { return Array(place, rank); }
  std::span<std::byte> Sum(int place) const { return Array(place, worker_count_); }

 private:
  std::span<std::byte> Array(int place, int index) const {
    const int64_t bytes = PieceBytes(worker_count_);
    return memory_.subspan((place * (int64_t{worker_count_} + 1) + index) * bytes, bytes);
  }

  std::span<std::byte> memory_;
  int worker_count_ = 0;
};

}  // namespace starring

#endif  // STARRING_COMMON_REDUCE_PIECE_MEMORY_H_
