// Where the optimizer state of owned elements is: a process keeps state for what it owns alone, bucket after bucket, in
// each state vector.
//
// Thread safety: const methods may run at the same time.
#ifndef STARRING_COMMON_JOB_SLICE_PLACES_H_
#define STARRING_COMMON_JOB_SLICE_PLACES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "common/job/layout.h"

namespace starring {

class SlicePlaces {
 public:
  // slices[b]: the ranges of bucket b that are owned, ascending, without overlaps; empty ranges are left out.
  explicit SlicePlaces(std::span<const std::vector<ElementRange>> slices);

  int bucket_count() const { return static_cast<int>(buckets_.size()); }
  // The length of a state vector. A slice begins at a multiple of Layout::kAlignmentElements.
  int64_t element_count() const { return element_count_; }

  // All REQUIRE 0 <= bucket < bucket_count().
  // Ascending; adjacent ranges are joined.
  const std::vector<ElementRange>& ranges(int bucket) const { return At(bucket).ranges; }
  // The place of the bucket's slice in a state vector: its ranges one after the other.
  ElementRange slice(int bucket) const { return At(bucket).slice; }
  // Where `piece` begins in the slice; -1 if it is empty or not inside one range.
  int64_t OffsetOf(int bucket, ElementRange piece) const;

 private:
  struct Bucket {
    std::vector<ElementRange> ranges;
    std::vector<int64_t> offsets;  // of each range in the slice
    ElementRange slice;
  };
  const Bucket& At(int bucket) const;

  std::vector<Bucket> buckets_;
  int64_t element_count_ = 0;
};

}  // namespace starring

#endif  // STARRING_COMMON_JOB_SLICE_PLACES_H_
