#include "common/job/slice_places.h"

#include <algorithm>
#include <iterator>

#include "common/base/check.h"

namespace starring {
namespace {

using Ranges = std::vector<ElementRange>;

// A ring of one rank owns block after block: joined, they make one long piece instead of one piece per block.
Ranges Merge(const Ranges& ranges) {
  Ranges merged;
  for (const ElementRange& range : ranges) {
    if (range.size() == 0) continue;
    if (!merged.empty() && merged.back().end == range.begin) {
      merged.back().end = range.end;
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

}  // namespace

SlicePlaces::SlicePlaces(std::span<const Ranges> slices) {
  for (const Ranges& slice : slices) {
    Bucket& bucket = buckets_.emplace_back();
    bucket.ranges = Merge(slice);
    int64_t owned = 0;
    for (const ElementRange& range : bucket.ranges) {
      bucket.offsets.push_back(owned);
      owned += range.size();
    }
    bucket.slice = {element_count_, element_count_ + owned};
    // A bucket's state is aligned as its parameters are, so that the optimizer's loads of both are.
    element_count_ +=
        (owned + Layout::kAlignmentElements - 1) / Layout::kAlignmentElements * Layout::kAlignmentElements;
  }
}

const SlicePlaces::Bucket& SlicePlaces::At(int bucket) const {
  CHECK(0 <= bucket && bucket < bucket_count()) << "bucket " << bucket << " of " << bucket_count();
  return buckets_[bucket];
}

// A binary search, because a rank of a ring owns one range of each block, hundreds of them in a large bucket.
int64_t SlicePlaces::OffsetOf(int bucket, ElementRange piece) const {
  const auto& [ranges, offsets, slice] = At(bucket);
  // `after` is the first range that begins after the piece does, so the range before it is the only candidate.
  const auto after = std::upper_bound(ranges.begin(), ranges.end(), piece.begin,
                                      [](int64_t element, const ElementRange& range) { return element < range.begin; });
  if (after == ranges.begin() || piece.size() <= 0) return -1;
  const ElementRange& owned = *std::prev(after);
  return piece.end <= owned.end ? offsets[&owned - ranges.data()] + piece.begin - owned.begin : -1;
}

}  // namespace starring
