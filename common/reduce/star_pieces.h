// A *piece* is the part of an owner's slice of a reduction that travels as one message: from each rank to the owner as
// a *contribution*, and back as an *answer*, the sum.
#ifndef STARRING_COMMON_REDUCE_STAR_PIECES_H_
#define STARRING_COMMON_REDUCE_STAR_PIECES_H_

#include <algorithm>
#include <bit>
#include <cstdint>

#include "common/reduce/element_sum.h"

namespace starring {

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

#endif  // STARRING_COMMON_REDUCE_STAR_PIECES_H_
