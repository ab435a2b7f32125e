// The messages between a worker and a server that are ranks of one world (a dedicated star over TCP). They are sent as
// they are in memory: little-endian. Gradients and parameters are the messages of a star (common/reduce/star.h).
//
//   worker                              server
//   ShardJoin, agreement           ─▶   its verdict goes to rank 0, which sends it to all
//   or in a check ShardJoin alone  ─▶   the messages of check_conversation.h follow, and no job
//   rank 0: state and parameters   ─▶   of every slice, bucket by bucket
//   gradient of a slice            ─▶   one for each node of the worker's share (common/job/leaf_shares.h)
//                                  ◀─   its parameters, when all workers' gradients are there
//   ShardRequest                   ─▶
//                                  ◀─   kFetchState: the vector's slice; kFinish: one byte, when all have sent theirs
//
// Where all of them share memory, the host board's counts stand for gradients and parameters: workers count arrivals,
// servers count updates.
//
// Thread safety: plain values and pure functions.
#ifndef STARRING_COMMON_TRANSPORT_SHARD_WIRE_H_
#define STARRING_COMMON_TRANSPORT_SHARD_WIRE_H_

#include <cstdint>

#include "common/base/limits.h"

namespace starring {

// Raise it with every change after which one end would misunderstand the other.
inline constexpr int32_t kShardWireVersion = 6;

// The shard that the worker expects the server to be, and facts about the worker's job. The agreement follows as a
// message of `agreement_bytes`.
struct ShardJoin {
  int32_t wire_version = kShardWireVersion;
  int32_t shard = 0;
  int32_t shard_count = 0;
  int16_t shares_memory = 0;  // 1: workers and servers share memory (common/transport/memory/host_arrays.h) if they can
  int16_t checks = 0;         // 1: the workers check the world before training, and have no agreement
  int64_t join_deadline_ms = 0;
  int64_t exchange_deadline_ms = 0;
  int64_t stall_report_ms = 0;
  uint64_t agreement_bytes = 0;
};
static_assert(sizeof(ShardJoin) == 48);

// kFetchState: rank 0 asks for state vector `vector` of the server's slice of `bucket`. kFinish: the worker needs
// nothing any more.
struct ShardRequest {
  enum class Kind : int32_t { kFetchState = 1, kFinish = 2 };
  Kind kind = Kind::kFinish;
  int32_t bucket = 0;
  int32_t vector = 0;
  int32_t reserved = 0;
};
static_assert(sizeof(ShardRequest) == 16);

// The slots of the star: a worker has so many slices on their way to one server, and further ones wait. Without that
// bound the connections of all workers fill the queue of the link at which they meet until it drops packets.
constexpr int ShardSlots(int bucket_count) { return bucket_count < kShardSlicesMax ? bucket_count : kShardSlicesMax; }

// At the start, after so many buckets from rank 0 all ranks meet, so that none waits longer than its deadline while
// rank 0 sends a long vector.
inline constexpr int kShardStartBuckets = 16;

// Long arrays travel in pieces of at most this many elements, so that a server copies no more of its state at a time.
inline constexpr int64_t kShardPieceElements = int64_t{4} << 20;

}  // namespace starring

#endif  // STARRING_COMMON_TRANSPORT_SHARD_WIRE_H_
