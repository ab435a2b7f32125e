#include "common/job/bucket_map.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/arithmetic/reduction_order.h"
#include "common/base/check.h"
#include "common/base/limits.h"

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

ElementRange BucketMap::last_block() const {
  const int64_t block_elements = ReductionBlockElements(world_size_);
  return {(element_count_ - 1) / block_elements * block_elements, element_count_};
}

}  // namespace starring
