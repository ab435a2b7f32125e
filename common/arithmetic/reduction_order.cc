#include "common/arithmetic/reduction_order.h"

#include <algorithm>
#include <bit>

#include "common/base/check.h"

namespace starring {

ElementRange RingChunk(ElementRange block, int chunk, int world_size) {
  CHECK_LT(chunk, world_size);
  // floor(e * N / L) == c exactly for e in [ceil(c * L / N), ceil((c + 1) * L / N)).
  const int64_t length = block.size();
  const auto first_of = [&](int64_t c) { return block.begin + (c * length + world_size - 1) / world_size; };
  return {first_of(chunk), first_of(chunk + 1)};
}

int TreeMiddle(LeafRange leaves) {
  CHECK_GE(leaves.size(), 2);
  return leaves.begin + static_cast<int>(std::bit_floor(static_cast<unsigned>(leaves.size() - 1)));
}

void ForEachRun(ElementRange range, int64_t element_count, ReductionOrder reduction,
                absl::FunctionRef<void(ElementRange run, int first_rank)> visit) {
  const int world_size = reduction.world_size;
  CHECK_GE(world_size, 1);
  CHECK(0 <= range.begin && range.begin <= range.end && range.end <= element_count)
      << "range [" << range.begin << ", " << range.end << ") of " << element_count << " elements";
  if (range.begin == range.end) return;
  if (world_size == 1 || reduction.order == SumOrder::kTree) return visit(range, 0);
  // With two ranks or more, neighbouring runs never share a first rank: the last chunk of a block starts at rank 0, the
  // first of the next one at rank 1.
  const int64_t block_elements = ReductionBlockElements(world_size);
  for (int64_t begin = range.begin / block_elements * block_elements; begin < range.end; begin += block_elements) {
    const ElementRange block = {begin, std::min(begin + block_elements, element_count)};
    const int64_t from = std::max(range.begin, block.begin);
    // The loop begins with the chunk that holds `from`, by the header's definition, so that a short range costs no walk
    // over all chunks of its block.
    for (int chunk = static_cast<int>((from - block.begin) * world_size / block.size()); chunk < world_size; ++chunk) {
      const ElementRange whole = RingChunk(block, chunk, world_size);
      const ElementRange run = {std::max(whole.begin, from), std::min(whole.end, range.end)};
      if (run.begin < run.end) visit(run, FirstRank(chunk, world_size));
      if (whole.end >= range.end) return;
    }
  }
}

}  // namespace starring
