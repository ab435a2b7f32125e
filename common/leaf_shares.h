// Micro-batches, and whose they are.
//
// With --micro_batches=M every global batch is cut in M *leaves*. Of n samples leaf i has those at the positions
// [n * i / M, n * (i + 1) / M), which may be none. A leaf's gradient depends on nothing but the leaf, and the leaves are
// added as a tree (SumOrder::kTree), so the number of workers decides no bit.
//
// A *node* is a subtree: leaves that the tree adds to one partial sum, before it adds others to it. A worker sends the
// sum of a node instead of its leaves. A *share* is what one worker computes: one node, or a few.
//
// Thread safety: pure functions.
#ifndef STARRING_COMMON_LEAF_SHARES_H_
#define STARRING_COMMON_LEAF_SHARES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "common/arithmetic/reduction_order.h"

namespace starring {

// The nodes of one worker, the largest first: it travels while the others are computed.
using LeafShare = std::vector<LeafRange>;

// --micro_batches=auto: the largest power of two, up to 32, that leaves 16 samples or more to a leaf. At least 1.
int AutoMicroBatches(int64_t global_batch);

// Whether the tree over `leaf_count` leaves has the sum of `leaves` as a partial sum.
bool IsTreeNode(LeafRange leaves, int leaf_count);

// Deals the leaves of a job to workers that need seconds_per_leaf[w] for one. Every worker gets one at least. Shares
// minimise, in this order: the time of the slowest worker, the most nodes that one worker has, the number of all nodes.
// Each is cut in powers of two, and the largest are placed first, as a buddy allocator does (Knowlton, CACM 1965).
// The same arguments give the same shares on every machine.
// REQUIRES: 1 <= workers <= leaf_count; all seconds are above 0 and finite.
std::vector<LeafShare> DealLeaves(int leaf_count, std::span<const double> seconds_per_leaf);

// One summand of a step's sum, and who sends it.
struct Contributor {
  int rank = 0;
  LeafRange leaves;
  int node = 0;          // which of its rank's share, in the order of the share
  bool is_last = false;  // of its rank's: it is answered with the sum's result, the others at once
};

// The summands of a job in the order of their leaves. With leaf_count 0 every worker is a leaf; otherwise all workers
// are equally fast. REQUIRES: world_size >= 1; leaf_count is 0 or at least world_size.
std::vector<Contributor> ContributorsOf(int world_size, int leaf_count);
// The share of `rank` among them.
LeafShare ShareOf(int rank, int world_size, int leaf_count);

}  // namespace starring

#endif  // STARRING_COMMON_LEAF_SHARES_H_
