// The order in which the contributions of all workers are added, stated once for star and ring.
//
// Words. The parameter vector is cut, from its start, in *reduction blocks* of world_size * kChunkElements elements;
// the last one is shorter. A block of length L is cut in world_size *ring chunks*: its element e lies in chunk c =
// floor(e * N / L), N the world size. The contributions to an element of chunk c are added left to right starting from
// rank (c + 1) mod N: the order in which a ring's reduce-scatter meets them, which ends at rank c, the chunk's owner in
// a ring.
//
// A bucket is a whole number of blocks, so neither the size of a bucket nor the number of server shards changes the
// order of a sum, and with it no bit of the result. In a bucket of many blocks every rank owns the same share.
//
// Thread safety: pure functions.
#ifndef STARRING_COMMON_ARITHMETIC_REDUCTION_ORDER_H_
#define STARRING_COMMON_ARITHMETIC_REDUCTION_ORDER_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/layout.h"

namespace starring {

// 128 KiB: the ring's message. A message costs some 4 us of either core beside its bytes (two handshakes and a system
// call), so smaller ones cost more; larger ones gain nothing measurable, leave less to overlap, and make the smallest
// bucket of many ranks longer.
inline constexpr int64_t kChunkElements = 32768;

inline int64_t ReductionBlockElements(int world_size) { return world_size * kChunkElements; }

// Elements of ring chunk `chunk` of the block that starts at `block.begin`; `block` as cut above.
ElementRange RingChunk(ElementRange block, int chunk, int world_size);

// The rank whose contribution comes first for elements of `chunk`.
inline int FirstRank(int chunk, int world_size) { return (chunk + 1) % world_size; }

// Calls `visit(run, first_rank)` for the maximal runs of `range` that share a first rank, in ascending order; the runs
// cover `range`, which may begin and end anywhere inside the vector of `element_count` elements.
void ForEachRun(ElementRange range, int64_t element_count, int world_size,
                absl::FunctionRef<void(ElementRange run, int first_rank)> visit);

}  // namespace starring

#endif  // STARRING_COMMON_ARITHMETIC_REDUCTION_ORDER_H_
