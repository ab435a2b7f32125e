// Micro-batches, and the workers that compute them.
//
// With --micro_batches=M every global batch is cut in M *leaves*. If the batch has n samples, leaf i has the samples at
// the positions [n * i / M, n * (i + 1) / M). A leaf may be empty. A leaf's gradient depends on nothing but the leaf,
// and the leaves are added as a tree (SumOrder::kTree), so the number of workers decides no bit.
//
// A *node* is a subtree: leaves that the tree adds to one partial sum, before it adds others to it. A worker sends the
// sum of a node instead of its leaves. A *share* is what one worker computes: one node, or a few.
//
// Thread safety: pure functions.
#ifndef STARRING_COMMON_JOB_LEAF_SHARES_H_
#define STARRING_COMMON_JOB_LEAF_SHARES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "common/arithmetic/reduction_order.h"

namespace starring {

// The nodes of one worker, the largest first. Over gRPC a node's contribution leaves as soon as it is computed, so the
// largest travels while the others are computed. Elsewhere all leave together.
using LeafShare = std::vector<LeafRange>;

// --micro_batches=auto: the largest power of two, up to 32, that leaves 16 samples or more to a leaf. At least 1.
int AutoMicroBatches(int64_t global_batch);

// Deals the leaves of a job to workers that need seconds_per_leaf[w] for one: returns each leaf's rank. Every worker
// gets one at least. The shares minimise, in this order: the time of the slowest worker, the most nodes that one worker
// has, the number of all nodes. Each is cut in powers of two, and the largest are placed first, as a buddy allocator
// does (Knowlton, CACM 1965). The same arguments give the same shares on every machine. REQUIRES: 1 <= workers <=
// leaf_count; all seconds are above 0 and finite.
std::vector<int> DealLeaves(int leaf_count, std::span<const double> seconds_per_leaf);

// The same for equally fast workers; with leaf_count 0 every worker is a leaf. REQUIRES: world_size >= 1; leaf_count is
// 0 or at least world_size.
std::vector<int> DealLeavesEvenly(int leaf_count, int world_size);

// One summand of a step's sum, and who sends it.
struct Contributor {
  int rank = 0;
  LeafRange leaves;
  int node = 0;          // which of its rank's share, in the order of the share
  bool is_last = false;  // of its rank's: it is answered with the sum's result, the others at once
};

// The summands of a job, in the order of their leaves: the largest nodes all of whose leaves have one owner.
// `leaf_owners` has each leaf's rank.
std::vector<Contributor> ContributorsOf(std::span<const int> leaf_owners);
// The share of `rank` among them; empty if it owns no leaf.
LeafShare ShareOf(int rank, std::span<const int> leaf_owners);

}  // namespace starring

#endif  // STARRING_COMMON_JOB_LEAF_SHARES_H_
