#include "common/job/block_owners.h"

#include <algorithm>

#include "common/arithmetic/reduction_order.h"
#include "common/base/check.h"

namespace starring {

BlockOwners::BlockOwners(ElementRange block, int world_size) : block_(block), world_size_(world_size) {
  const int64_t whole = ReductionBlockElements(world_size);
  CHECK_EQ(block.begin % whole, 0);
  CHECK(block.size() > 0 && block.size() <= whole) << block.size();
  // A whole block of more than 16 ranks has shorter chunks, but those of several blocks share a message.
  const int64_t slices = block.size() * static_cast<int64_t>(sizeof(float)) / kSliceBytesMin;
  count_ = block.size() == whole ? world_size : static_cast<int>(std::clamp<int64_t>(slices, 1, world_size));
}

BlockOwners::Chunks BlockOwners::ChunksOf(int rank) const {
  CHECK(0 <= rank && rank < world_size_) << rank;
  // Chunk c is in part floor(c * count / N), as element e is in chunk floor(e * N / L).
  const int part = rank * count_ / world_size_;
  const auto first_of = [&](int p) { return (p * world_size_ + count_ - 1) / count_; };
  const Chunks chunks = {first_of(part), first_of(part + 1)};
  // Rank 0 has other things to do, so it is not the first in turn.
  const int64_t turn = block_.begin / ReductionBlockElements(world_size_) + 1;
  const int owner = chunks.begin + static_cast<int>(turn % (chunks.end - chunks.begin));
  return rank == owner ? chunks : Chunks{};
}

ElementRange BlockOwners::SliceOf(int rank) const {
  const Chunks chunks = ChunksOf(rank);
  if (chunks.begin == chunks.end) return {block_.begin, block_.begin};
  return {RingChunk(block_, chunks.begin, world_size_).begin, RingChunk(block_, chunks.end - 1, world_size_).end};
}

}  // namespace starring
