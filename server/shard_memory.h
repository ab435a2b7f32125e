// What a shard of a job needs, known before anything is allocated for it.
//
// Thread safety: pure functions.
#ifndef STARRING_SERVER_SHARD_MEMORY_H_
#define STARRING_SERVER_SHARD_MEMORY_H_

#include <cstdint>

#include "absl/status/status.h"
#include "common/job_spec.h"

namespace starring {

// What a shard of this job holds at most, in bytes: parameters, the optimizer's state, the contributions of all
// workers to all buckets.
int64_t ShardMemoryNeeded(const Agreement& agreement, int shard, int shard_count);

// ResourceExhausted, with both numbers and the way out, if the shard needs more than it may use.
absl::Status CheckShardMemory(const Agreement& agreement, int shard, int shard_count, int64_t memory_bytes_max);

}  // namespace starring

#endif  // STARRING_SERVER_SHARD_MEMORY_H_
