// Which ranks own a reduction block (common/arithmetic/reduction_order.h) in a co-located star, where every rank can
// reach every other directly.
//
// Rank c owns ring chunk c. But the last block of the parameter vector may be so short that a chunk has less than 16
// KiB; then a message costs more than its bytes, and the block has *few owners*: as many as get 16 KiB each, at least
// one. The chunks are divided among them, and an owner is one of the ranks whose chunks it has, in turn from block to
// block. Who owns an element changes no bit: its sum follows from the chunk.
//
// Thread safety: immutable.
#ifndef STARRING_COMMON_JOB_BLOCK_OWNERS_H_
#define STARRING_COMMON_JOB_BLOCK_OWNERS_H_

#include <cstdint>

#include "common/job/layout.h"

namespace starring {

class BlockOwners {
 public:
  static constexpr int64_t kSliceBytesMin = 16 << 10;

  // `block` begins at a multiple of ReductionBlockElements(world_size), and is that long or shorter.
  BlockOwners(ElementRange block, int world_size);

  // Fewer than there are ranks. Only a block that is shorter than others has few owners.
  bool are_few() const { return count_ < world_size_; }
  int count() const { return count_; }

  // The chunks that `rank` owns, [begin, end); empty for a rank that owns nothing.
  struct Chunks {
    int begin = 0;
    int end = 0;
  };
  Chunks ChunksOf(int rank) const;
  // Their elements of the parameter vector.
  ElementRange SliceOf(int rank) const;

 private:
  const ElementRange block_;
  const int world_size_;
  int count_ = 0;
};

}  // namespace starring

#endif  // STARRING_COMMON_JOB_BLOCK_OWNERS_H_
