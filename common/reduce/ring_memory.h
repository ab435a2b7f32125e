// The memory through which a rank of a ring gets messages from its left neighbour, if that can map it: a *place* for
// each message of each block in flight. The neighbour writes the message into its place, and a message without bytes
// says that this has happened.
//
// A place is free when it is written again. The neighbour sends partial sums of the next block in a slot when it has
// completed the block before: it has the sums of all chunks then, so no rank waits for a partial sum any more. It sends
// sums of the next block when this rank has added to that block, which it begins when it has taken all sums of the
// block before.
//
// Thread safety: immutable, but for the bytes.
#ifndef STARRING_COMMON_REDUCE_RING_MEMORY_H_
#define STARRING_COMMON_REDUCE_RING_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/arithmetic/reduction_order.h"
#include "common/base/check.h"
#include "common/base/limits.h"

namespace starring {

class RingMemory {
 public:
  static constexpr int64_t BytesNeeded(int world_size) {
    return int64_t{RingBlocksInFlightMax(world_size)} * 2 * (world_size - 1) * ChunkBytesFor(world_size);
  }

  // `memory` has BytesNeeded bytes, begins at a cache line, and outlives this object. REQUIRES: world_size >= 2.
  RingMemory(std::span<std::byte> memory, int world_size) : memory_(memory), world_size_(world_size) {
    CHECK_GE(world_size, 2);
    CHECK_GE(std::ssize(memory), BytesNeeded(world_size));
  }

  // ChunkBytesFor(world_size) bytes each: a partial sum, and a sum.
  std::span<std::byte> Partial(int slot, int hop) const { return Place(2 * slot, hop); }
  std::span<std::byte> Sum(int slot, int hop) const { return Place(2 * slot + 1, hop); }
  // Partial, as what it holds.
  std::span<float> PartialFloats(int slot, int hop) const {
    const std::span<std::byte> place = Partial(slot, hop);
    return {reinterpret_cast<float*>(place.data()), place.size() / sizeof(float)};
  }

 private:
  std::span<std::byte> Place(int row, int hop) const {
    const int64_t bytes = ChunkBytesFor(world_size_);
    return memory_.subspan((int64_t{row} * (world_size_ - 1) + hop) * bytes, bytes);
  }

  std::span<std::byte> memory_;
  int world_size_ = 0;
};

}  // namespace starring

#endif  // STARRING_COMMON_REDUCE_RING_MEMORY_H_
