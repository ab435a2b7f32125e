#include "server/shard_memory.h"

#include "absl/strings/str_format.h"
#include "common/arithmetic/optimizer.h"
#include "common/limits.h"

namespace starring {

int64_t ShardMemoryNeeded(const Agreement& agreement, int shard, int shard_count) {
  // What a bucket and a worker's part in it cost beside their floats; see CollectiveWait, Contribution.
  constexpr int64_t kBytesPerBucket = 1024;
  constexpr int64_t kBytesPerContribution = 256;
  int64_t owned = 0;
  for (int b = 0; b < agreement.buckets.bucket_count(); ++b) {
    owned += agreement.buckets.ShardSlice(b, shard, shard_count).size() * static_cast<int64_t>(sizeof(float));
  }
  // Buffers of the parameters and a copy in shared memory, state, and what all workers but the last wait with.
  const int64_t copies = kSliceBuffersMax + 1 + StateVectorCount(agreement.optimizer) + agreement.world_size;
  const int64_t per_bucket = kBytesPerBucket + agreement.world_size * kBytesPerContribution;
  return owned * copies + agreement.buckets.bucket_count() * per_bucket;
}

absl::Status CheckShardMemory(const Agreement& agreement, int shard, int shard_count, int64_t memory_bytes_max) {
  const int64_t needed = ShardMemoryNeeded(agreement, shard, shard_count);
  if (needed <= memory_bytes_max) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat(
      "shard %d of %d needs %.3f GB for %d elements of %d workers, this server may use %.3f GB: start more servers, or "
      "raise the server's --memory_limit_gb",
      shard, shard_count, 1e-9 * static_cast<double>(needed), agreement.buckets.element_count(), agreement.world_size,
      1e-9 * static_cast<double>(memory_bytes_max)));
}

}  // namespace starring
