// Cuts the parameter vector into buckets, and every bucket into slices, one for each owner.
//
// Buckets are contiguous, a whole number of reduction blocks long (common/arithmetic/reduction_order.h; of one worker
// where servers are the owners), and numbered in the order in which backward finishes them: bucket 0 is the end of the
// vector, which holds the last layers. A bucket may begin inside a tensor. Owners are server shards (star: one
// contiguous, 64-byte aligned range per bucket) or ranks (ring and co-located star: its ring chunk of every block of
// the bucket, unless the block has few owners; ranks that share memory: one range, as for shards).
//
// Thread safety: immutable after Create; any thread may call any method.
#ifndef STARRING_COMMON_JOB_BUCKET_MAP_H_
#define STARRING_COMMON_JOB_BUCKET_MAP_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/job/layout.h"

namespace starring {

// As BlockOwners::kSliceBytesMin, for another reason: BucketMap::RankSlice.
inline constexpr int64_t kRankSliceBytesMin = 16 << 10;

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

  // Star: the part of bucket `b` that shard `shard` of `shard_count` owns. It is empty for some shards when a bucket
  // has fewer 64-byte lines than there are shards.
  ElementRange ShardSlice(int b, int shard, int shard_count) const;

  // Ring: the parts of bucket `b` that `rank` owns, ascending, one range per reduction block; empty ranges are left
  // out.
  std::vector<ElementRange> RingSlice(int b, int rank) const;

  // Co-located star: the same, but a short last block may have few owners (common/job/block_owners.h).
  std::vector<ElementRange> DirectSlice(int b, int rank) const;

  // The last reduction block of the vector, which may be shorter than others.
  ElementRange last_block() const;

  // Ranks that share memory: the part of bucket `b` that `rank` owns, 64-byte aligned. A slice has at least
  // kRankSliceBytesMin bytes, if the bucket has: a wake-up takes longer than the update of fewer. So a small bucket has
  // fewer owners than there are ranks, different ones from bucket to bucket. Nobody's message must fit a ring chunk
  // here, so the slices are one range each, and depend on where buckets begin.
  ElementRange RankSlice(int b, int rank) const;
  // How many ranks own a part of bucket `b`, at least 1.
  int RankSliceCount(int b) const;

 private:
  std::vector<ElementRange> SliceOfBlocks(int b, int rank,
                                          absl::FunctionRef<ElementRange(ElementRange block)> slice_of) const;

  std::vector<ElementRange> buckets_;
  int64_t element_count_ = 0;
  int64_t bucket_elements_ = 0;
  int world_size_ = 1;
};

}  // namespace starring

#endif  // STARRING_COMMON_JOB_BUCKET_MAP_H_
