#include "common/job/bucket_map.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/arithmetic/reduction_order.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/job/block_owners.h"

namespace starring {

absl::StatusOr<BucketMap> BucketMap::Create(const Options& options) {
  const auto at_least_one = [](const char* name, int64_t value) {
    if (value >= 1) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(name, " is ", value, ", it must be 1 or more"));
  };
  for (const absl::Status& status :
       {at_least_one("element_count", options.element_count), at_least_one("bucket_bytes", options.bucket_bytes),
        at_least_one("world_size", options.world_size)}) {
    if (!status.ok()) return status;
  }
  if (options.world_size > kWorldSizeMax)
    return absl::InvalidArgumentError(
        absl::StrCat("world_size is ", options.world_size, ", at most ", kWorldSizeMax, " is allowed"));
  if (options.element_count > kElementCountMax)
    return absl::InvalidArgumentError(
        absl::StrCat("element_count is ", options.element_count, ", at most ", kElementCountMax, " is allowed"));

  if (options.bucket_bytes > kBucketBytesMax)
    return absl::InvalidArgumentError(
        absl::StrCat("--bucket_bytes=", options.bucket_bytes, ": at most ", kBucketBytesMax, " (1 GiB) are allowed"));

  // A bucket that is longer than the vector is the whole vector. Clamping comes first, so that nothing overflows and
  // two jobs that cut the vector alike also report the same bucket_bytes().
  const int64_t block_elements = ReductionBlockElements(options.world_size);
  const int64_t wanted_bytes = std::min<int64_t>(options.bucket_bytes, options.element_count * sizeof(float));
  const int64_t block_bytes = block_elements * sizeof(float);
  // The number is rounded up, but not over the limit, or the other processes would refuse the value. A block has at
  // most 4 MiB.
  const int64_t bucket_blocks = std::min((wanted_bytes + block_bytes - 1) / block_bytes, kBucketBytesMax / block_bytes);

  BucketMap map;
  map.element_count_ = options.element_count;
  map.bucket_elements_ = bucket_blocks * block_elements;
  map.world_size_ = options.world_size;
  const int64_t count = (options.element_count + map.bucket_elements_ - 1) / map.bucket_elements_;
  if (count > kBucketCountMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("--bucket_bytes=", options.bucket_bytes, " cuts ", options.element_count, " parameters in ", count,
                     " buckets, at most ", kBucketCountMax, " are allowed: raise --bucket_bytes"));
  }
  // Buckets are numbered from the end of the vector, because backward finishes the last layers first.
  map.buckets_.reserve(count);
  for (int64_t b = count - 1; b >= 0; --b) {
    map.buckets_.push_back({b * map.bucket_elements_, std::min((b + 1) * map.bucket_elements_, map.element_count_)});
  }
  return map;
}

int BucketMap::BucketOf(int64_t element) const {
  CHECK_GE(element, 0);
  CHECK_LT(element, element_count_);
  return bucket_count() - 1 - static_cast<int>(element / bucket_elements_);
}

ElementRange BucketMap::ShardSlice(int b, int shard, int shard_count) const {
  CHECK_GE(shard, 0);
  CHECK_LT(shard, shard_count);
  const ElementRange& range = bucket(b);
  // Slices are whole lines, so that no two shards write to one cache line, and so that slices stay aligned for vector
  // loads.
  const int64_t lines = (range.size() + Layout::kAlignmentElements - 1) / Layout::kAlignmentElements;
  // A shard's slice ends where the next one's begins, so the slices cover the bucket.
  const auto first_of = [&](int64_t s) {
    return std::min(range.begin + lines * s / shard_count * Layout::kAlignmentElements, range.end);
  };
  return {first_of(shard), first_of(shard + 1)};
}

std::vector<ElementRange> BucketMap::RingSlice(int b, int rank) const {
  return SliceOfBlocks(b, rank, [&](ElementRange block) { return RingChunk(block, rank, world_size_); });
}

std::vector<ElementRange> BucketMap::DirectSlice(int b, int rank) const {
  return SliceOfBlocks(b, rank, [&](ElementRange block) { return BlockOwners(block, world_size_).SliceOf(rank); });
}

std::vector<ElementRange> BucketMap::SliceOfBlocks(int b, int rank,
                                                   absl::FunctionRef<ElementRange(ElementRange block)> slice_of) const {
  CHECK_GE(rank, 0);
  CHECK_LT(rank, world_size_);
  const ElementRange& range = bucket(b);
  const int64_t block_elements = ReductionBlockElements(world_size_);
  std::vector<ElementRange> slice;
  // A bucket begins where a reduction block begins, so the blocks are counted from the bucket's begin.
  slice.reserve((range.size() + block_elements - 1) / block_elements);
  for (int64_t begin = range.begin; begin < range.end; begin += block_elements) {
    const ElementRange of_block = slice_of({begin, std::min(begin + block_elements, range.end)});
    if (of_block.size() > 0) slice.push_back(of_block);
  }
  return slice;
}

ElementRange BucketMap::last_block() const {
  const int64_t block_elements = ReductionBlockElements(world_size_);
  return {(element_count_ - 1) / block_elements * block_elements, element_count_};
}

int BucketMap::RankSliceCount(int b) const {
  const int64_t bytes = bucket(b).size() * static_cast<int64_t>(sizeof(float));
  return static_cast<int>(std::clamp<int64_t>(bytes / kRankSliceBytesMin, 1, world_size_));
}

ElementRange BucketMap::RankSlice(int b, int rank) const {
  CHECK_GE(rank, 0);
  CHECK_LT(rank, world_size_);
  const int64_t count = RankSliceCount(b);
  // The owners of a bucket begin after those of the bucket before, so that they take turns.
  const int64_t first = b * count % world_size_;
  const int64_t slice = (rank - first + world_size_) % world_size_;
  if (slice >= count) return {bucket(b).end, bucket(b).end};
  return ShardSlice(b, static_cast<int>(slice), static_cast<int>(count));
}

}  // namespace starring
