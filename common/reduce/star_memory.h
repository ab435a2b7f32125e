// The memory in which an owner of a star (owner.h) takes contributions: a *slot* for each piece in flight, with
// *places* of one message each. Processes of the owner's host can map it. Then they write their contributions into it
// and read the results from it, and messages only say that this has happened.
//
// The messages decide which process may access a place when. A process writes its contribution to a slot when it has
// taken the result of the piece before in that slot; the owner writes the result when it has all contributions. A
// process that has received a message sees what the sender wrote before it sent it: a host board promises that
// (common/transport/memory/host_board.h).
//
// Thread safety: immutable, but for the bytes.
#ifndef STARRING_COMMON_REDUCE_STAR_MEMORY_H_
#define STARRING_COMMON_REDUCE_STAR_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/check.h"

namespace starring {

class StarMemory {
 public:
  // Places begin at cache lines, because the loops that add are fastest there.
  static constexpr int64_t PlaceBytes(int64_t piece_bytes) { return (piece_bytes + 63) / 64 * 64; }
  // A slot for a result and `contributors` contributions of at most piece_bytes_max each.
  static constexpr int64_t SlotBytes(int contributors, int64_t piece_bytes_max) {
    return (int64_t{contributors} + 1) * PlaceBytes(piece_bytes_max);
  }

  StarMemory() = default;
  // `memory` begins at a cache line and outlives this object. Its slots have the same length. Memory that other
  // processes map has places of fixed_place_bytes: one of them may still read the result of one piece while another
  // one writes its contribution to the next. Otherwise, 0, a slot has more places for shorter pieces.
  StarMemory(std::span<std::byte> memory, int slot_count, int64_t fixed_place_bytes = 0)
      : memory_(memory),
        slot_bytes_(std::ssize(memory) / slot_count / 64 * 64),
        slot_count_(slot_count),
        fixed_place_bytes_(fixed_place_bytes) {}

  int slot_count() const { return slot_count_; }
  std::span<std::byte> Place(int slot, int place, int64_t piece_bytes) const {
    const int64_t bytes = fixed_place_bytes_ > 0 ? fixed_place_bytes_ : PlaceBytes(piece_bytes);
    CHECK(piece_bytes <= bytes && (place + 1) * bytes <= slot_bytes_) << piece_bytes << " bytes in place " << place;
    return memory_.subspan(slot * slot_bytes_ + place * bytes, piece_bytes);
  }

 private:
  std::span<std::byte> memory_;
  int64_t slot_bytes_ = 0;
  int slot_count_ = 0;
  int64_t fixed_place_bytes_ = 0;
};

}  // namespace starring

#endif  // STARRING_COMMON_REDUCE_STAR_MEMORY_H_
