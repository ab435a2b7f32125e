// Cuts the parameter vector into buckets. common/reduce/owner_map.h says which process owns which part of a bucket.
//
// Buckets are contiguous, a whole number of reduction blocks long (common/arithmetic/reduction_order.h; of one worker
// where servers are the owners), and numbered in the order in which backward finishes them: bucket 0 is the end of the
// vector, which holds the last layers. A bucket may begin inside a tensor.
//
// Thread safety: immutable after Create; any thread may call any method.
#ifndef STARRING_COMMON_JOB_BUCKET_MAP_H_
#define STARRING_COMMON_JOB_BUCKET_MAP_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/element_range.h"
#include "common/reduce/owner_map.h"

namespace starring {

class BucketMap {
 public:
  BucketMap() = default;

  // `bucket_bytes` is rounded up to whole reduction blocks of `world_size` ranks, but not over the limit. Servers take
  // 1: they own no chunks of blocks, and an element's place in the vector, not in a bucket, decides how it is added. So
  // their smallest bucket is 128 KiB, and the cut is the same with any number of workers.
  // Fails with InvalidArgument if an argument is below 1 or above limits.h, or there are more buckets than it allows.
  struct Options {
    int64_t element_count = 0;
    int64_t bucket_bytes = 0;
    int world_size = 1;
  };
  static absl::StatusOr<BucketMap> Create(const Options& options);

  int bucket_count() const { return static_cast<int>(buckets_.size()); }
  int64_t element_count() const { return element_count_; }
  // Options::world_size, which is not the number of workers where there are servers.
  int world_size() const { return world_size_; }
  // Options::bucket_bytes as it was rounded: whole blocks, and no more of them than the vector has.
  int64_t bucket_bytes() const { return bucket_elements_ * static_cast<int64_t>(sizeof(float)); }
  // All buckets are equally long except bucket 0, which may be shorter: it holds the rest at the vector's end.
  const ElementRange& bucket(int b) const { return buckets_[b]; }
  int BucketOf(int64_t element) const;

  // Bucket `b`, for an OwnerMap.
  OwnerMap::Sum sum(int b) const { return {bucket(b), b}; }

  // The last reduction block of the vector, which may be shorter than others.
  ElementRange last_block() const;

 private:
  std::vector<ElementRange> buckets_;
  int64_t element_count_ = 0;
  int64_t bucket_elements_ = 0;
  int world_size_ = 1;
};

}  // namespace starring

#endif  // STARRING_COMMON_JOB_BUCKET_MAP_H_
