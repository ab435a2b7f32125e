// How a star divides a reduction's elements among owners, and an owner's elements into messages. The sum of an element
// is the same whoever owns it, so the cut serves speed alone.
//
// Words. A *slice* is the part of a reduction that has one owner. A *piece* is a part of a slice that travels as one
// message: from each rank to the owner as a *contribution*, and back as an *answer*, the sum.
//
// Every owner has a slice of a long array. A slice has 16 KiB or more, so a short array has few owners; these follow
// from the reduction's number, so that the owners take turns.
//
// Thread safety: immutable.
#ifndef STARRING_COMMON_REDUCE_STAR_CUT_H_
#define STARRING_COMMON_REDUCE_STAR_CUT_H_

#include <algorithm>
#include <bit>
#include <cstdint>

#include "common/base/element_range.h"
#include "common/reduce/element_sum.h"
#include "common/reduce/reduction.h"

namespace starring {

class StarCut {
 public:
  static constexpr int64_t kSliceBytesMin = 16 << 10;

  // REQUIRES: owner_count >= 1, and CheckHead accepts the head.
  StarCut(const Reduction& reduction, int owner_count);

  // What `owner` owns; empty: nothing.
  ElementRange SliceOf(int owner) const;

 private:
  const int64_t count_;
  const int owner_count_;
  const int slice_count_;
  const int first_owner_;  // of slice 0
};

// The bytes of a piece: long enough that its bytes cost more than its message; with many ranks shorter, because an
// owner holds contributions of all of them.
constexpr int64_t PieceBytes(int worker_count) {
  const int64_t fair_share = (int64_t{4} << 20) / worker_count;
  return std::clamp<int64_t>(static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(fair_share))), 16 << 10,
                             256 << 10);
}
constexpr int64_t PieceElements(int worker_count, ElementType type) {
  return PieceBytes(worker_count) / ElementBytes(type);
}

// Pieces that a rank has on their way to one owner, sent and not answered: one travels there, one is added, one travels
// back, and one follows. An owner has places for as many of every rank.
inline constexpr int kPiecesOnTheirWay = 4;

}  // namespace starring

#endif  // STARRING_COMMON_REDUCE_STAR_CUT_H_
