// The order in which the contributions of all N workers are added, stated once for all exchanges. There are two orders.
// All processes of a job agree on one of them.
//
// *Chain*: what a ring can do. The parameter vector is cut, from its start, in *reduction blocks* of N *
// ChunkElements(N) elements; the last one is shorter. A block of length L is cut in N *ring chunks*: its element e is
// in chunk c = floor(e * N / L). The contributions to an element of chunk c are added left to right starting from rank
// (c + 1) mod N: the order in which a ring's reduce-scatter meets them, which ends at rank c, the chunk's owner in a
// ring.
//
// *Tree*: the leaves are the workers, in the order of their ranks, or the micro-batches of a global batch
// (common/job/leaf_shares.h). The sum of the leaves [a, b) is the sum of [a, m) plus the sum of [m, b), where m - a is
// the largest power of two below b - a. The order is the same for every element. A sum of n terms has a chain of at
// most log2(n) + 1 roundings instead of n - 1. A ring cannot add in this order: its partial sums pass through the ranks
// one by one. With two leaves both orders give the same bits, because a + b = b + a.
//
// Where an element is in the vector decides its order, so neither the size of a bucket nor the number of server shards
// changes a bit of the result. Where ranks own chunks, a bucket is a whole number of blocks. In a bucket of many blocks
// every rank owns the same share.
//
// Thread safety: pure functions.
#ifndef STARRING_COMMON_ARITHMETIC_REDUCTION_ORDER_H_
#define STARRING_COMMON_ARITHMETIC_REDUCTION_ORDER_H_

#include <algorithm>
#include <bit>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "common/base/element_range.h"

namespace starring {

enum class SumOrder { kChain, kTree };

struct ReductionOrder {
  SumOrder order = SumOrder::kChain;
  int world_size = 1;
};

// The leaves [begin, end).
struct LeafRange {
  int begin = 0;
  int end = 0;
  int size() const { return end - begin; }
  friend bool operator==(const LeafRange&, const LeafRange&) = default;
};

// In a tree, the first leaf of the right half of the sum of `leaves`. REQUIRES: there are at least two leaves.
int TreeMiddle(LeafRange leaves);

// Adding the leaves of a node one after the other needs no recursion. The sums that wait for their right half are
// complete subtrees, each smaller than the one before, like the ones of a binary counter. This many sums wait when leaf
// `i` of the node comes, counted from 0.
constexpr int SumsWaiting(int i) { return std::popcount(static_cast<unsigned>(i)); }
// This many of the waiting sums, the last ones, are then added to the leaf from the right: waiting + (waiting + leaf).
constexpr int SumsEnding(int i, int node_size) {
  return i + 1 == node_size ? SumsWaiting(i) : std::countr_one(static_cast<unsigned>(i));
}

// A message between ranks has at most 128 KiB. In addition to its bytes, a message costs some 4 us of either core (two
// handshakes and a system call), so smaller messages cost more. Larger messages gain nothing measurable and leave less
// to overlap.
inline constexpr int64_t kChunkBytesMax = 128 << 10;
inline constexpr int64_t kChunkElementsMax = kChunkBytesMax / static_cast<int64_t>(sizeof(float));
inline constexpr int64_t kChunkBytesMin = 4 << 10;

// The bytes of a chunk of a whole block: as a message has, or, with more than four ranks, so few that the block has 128
// to 256 KiB. A block is the ranks' smallest bucket, so many ranks overlap exchange and computation as well as few do.
// From 65 ranks on a chunk has 4 KiB, a page, and the block grows.
//
// The size depends on nothing but the number of ranks. It decides bits: the agreement of the ranks contains it
// (common/job/job_spec.h). REQUIRES: world_size >= 1.
constexpr int64_t ChunkBytesFor(int world_size) {
  if (world_size <= 4) return kChunkBytesMax;
  const uint64_t fair_share = (uint64_t{256} << 10) / static_cast<uint64_t>(world_size);
  return std::max(kChunkBytesMin, static_cast<int64_t>(std::bit_floor(fair_share)));
}
constexpr int64_t ChunkElements(int world_size) {
  return ChunkBytesFor(world_size) / static_cast<int64_t>(sizeof(float));
}
constexpr int64_t ReductionBlockElements(int world_size) { return world_size * ChunkElements(world_size); }

// Elements of ring chunk `chunk` of the block that starts at `block.begin`; `block` as cut above.
ElementRange RingChunk(ElementRange block, int chunk, int world_size);

// The rank whose contribution comes first for elements of `chunk`.
inline int FirstRank(int chunk, int world_size) { return (chunk + 1) % world_size; }

// Calls `visit(run, first_rank)` for the maximal runs of `range` that share a first rank, in ascending order; the runs
// cover `range`, which may begin and end anywhere inside the vector of `element_count` elements. A tree has one run,
// whose first rank is 0.
void ForEachRun(ElementRange range, int64_t element_count, ReductionOrder reduction,
                absl::FunctionRef<void(ElementRange run, int first_rank)> visit);

}  // namespace starring

#endif  // STARRING_COMMON_ARITHMETIC_REDUCTION_ORDER_H_
