#include "common/leaf_shares.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "common/check.h"

namespace starring {
namespace {

constexpr int kAutoMicroBatchesMax = 32;
constexpr int64_t kAutoLeafSamplesMin = 16;

int NodeCount(int load) { return std::popcount(static_cast<unsigned>(load)); }

// How many leaves each worker can compute in `seconds`, and one in any case.
std::vector<int> Capacities(int leaf_count, std::span<const double> seconds_per_leaf, double seconds) {
  std::vector<int> capacities;
  for (const double one : seconds_per_leaf) {
    // Division and multiplication round: the leaves must fit by the comparison that chose `seconds`.
    auto leaves = static_cast<int>(std::min<double>(leaf_count, std::floor(seconds / one)));
    if (leaves < leaf_count && (leaves + 1) * one <= seconds) ++leaves;
    if (leaves > 1 && leaves * one > seconds) --leaves;
    capacities.push_back(std::max(1, leaves));
  }
  return capacities;
}

// The most leaves that each worker may have if the slowest is to be as fast as possible.
std::vector<int> BestCapacities(int leaf_count, std::span<const double> seconds_per_leaf) {
  // The slowest worker's time is that of some number of leaves of some worker.
  std::vector<double> times;
  for (const double one : seconds_per_leaf) {
    for (int leaves = 1; leaves <= leaf_count; ++leaves) times.push_back(leaves * one);
  }
  std::sort(times.begin(), times.end());
  const auto suffices = [&](double seconds) {
    const std::vector<int> capacities = Capacities(leaf_count, seconds_per_leaf, seconds);
    return std::accumulate(capacities.begin(), capacities.end(), 0) >= leaf_count;
  };
  const auto best = std::partition_point(times.begin(), times.end(), [&](double time) { return !suffices(time); });
  CHECK(best != times.end());
  return Capacities(leaf_count, seconds_per_leaf, *best);
}

// Loads within the capacities, of `nodes_max` nodes at most each, with the fewest nodes in all; empty if there are none.
std::vector<int> ChooseLoads(int leaf_count, std::span<const int> capacities, int nodes_max) {
  constexpr int kNone = INT32_MAX;
  const size_t worker_count = capacities.size();
  // fewest[w][n]: nodes of the workers from w on, which have n leaves together. Later workers are decided first, so that
  // walking forward takes the largest load for the first worker.
  std::vector<std::vector<int>> fewest(worker_count + 1, std::vector<int>(static_cast<size_t>(leaf_count) + 1, kNone));
  fewest[worker_count][0] = 0;
  const auto nodes_with = [&](size_t worker, int leaves, int load) {
    const int others = fewest[worker + 1][static_cast<size_t>(leaves - load)];
    return others == kNone || NodeCount(load) > nodes_max ? kNone : others + NodeCount(load);
  };
  for (size_t worker = worker_count; worker-- > 0;) {
    for (int leaves = 1; leaves <= leaf_count; ++leaves) {
      int& best = fewest[worker][static_cast<size_t>(leaves)];
      for (int load = 1; load <= std::min(leaves, capacities[worker]); ++load) {
        best = std::min(best, nodes_with(worker, leaves, load));
      }
    }
  }
  if (fewest[0][static_cast<size_t>(leaf_count)] == kNone) return {};
  std::vector<int> loads;
  int leaves = leaf_count;
  for (size_t worker = 0; worker < worker_count; ++worker) {
    int load = std::min(leaves, capacities[worker]);
    while (nodes_with(worker, leaves, load) != fewest[worker][static_cast<size_t>(leaves)]) --load;
    loads.push_back(load);
    leaves -= load;
  }
  return loads;
}

// Sums of neighbours that the tree adds next become one node.
void JoinSiblings(int leaf_count, LeafShare& share) {
  for (size_t i = 0; i + 1 < share.size();) {
    const LeafRange both = {share[i].begin, share[i + 1].end};
    if (share[i].end == share[i + 1].begin && IsTreeNode(both, leaf_count) && TreeMiddle(both) == share[i].end) {
      share[i] = both;
      share.erase(share.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      i = i > 0 ? i - 1 : 0;
    } else {
      ++i;
    }
  }
}

}  // namespace

int AutoMicroBatches(int64_t global_batch) {
  const int64_t leaves = std::clamp<int64_t>(global_batch / kAutoLeafSamplesMin, 1, kAutoMicroBatchesMax);
  return static_cast<int>(std::bit_floor(static_cast<uint64_t>(leaves)));
}

bool IsTreeNode(LeafRange leaves, int leaf_count) {
  if (leaves.begin < 0 || leaves.size() < 1 || leaves.end > leaf_count) return false;
  LeafRange node = {0, leaf_count};
  while (node.size() > leaves.size()) {
    const int middle = TreeMiddle(node);
    node = leaves.begin < middle ? LeafRange{node.begin, middle} : LeafRange{middle, node.end};
  }
  return node == leaves;
}

std::vector<LeafShare> DealLeaves(int leaf_count, std::span<const double> seconds_per_leaf) {
  CHECK_GE(seconds_per_leaf.size(), 1);
  CHECK_LE(seconds_per_leaf.size(), static_cast<size_t>(leaf_count));
  for (const double seconds : seconds_per_leaf) CHECK(std::isfinite(seconds) && seconds > 0) << seconds;
  const std::vector<int> capacities = BestCapacities(leaf_count, seconds_per_leaf);
  std::vector<int> loads;
  for (int nodes_max = 1; loads.empty(); ++nodes_max) loads = ChooseLoads(leaf_count, capacities, nodes_max);

  std::vector<LeafShare> shares(loads.size());
  // A block that is placed after larger ones only begins at a multiple of its size: it is a node of the tree.
  int next = 0;
  for (unsigned size = std::bit_floor(static_cast<unsigned>(leaf_count)); size > 0; size /= 2) {
    for (size_t worker = 0; worker < loads.size(); ++worker) {
      if ((static_cast<unsigned>(loads[worker]) & size) == 0) continue;
      shares[worker].push_back({next, next + static_cast<int>(size)});
      next += static_cast<int>(size);
    }
  }
  CHECK_EQ(next, leaf_count);
  for (LeafShare& share : shares) JoinSiblings(leaf_count, share);
  return shares;
}

LeafShare ShareOf(int rank, int world_size, int leaf_count) {
  if (leaf_count == 0) return {{rank, rank + 1}};
  return DealLeaves(leaf_count, std::vector<double>(static_cast<size_t>(world_size), 1.0))[static_cast<size_t>(rank)];
}

std::vector<Contributor> ContributorsOf(int world_size, int leaf_count) {
  CHECK_GE(world_size, 1);
  std::vector<LeafShare> shares;
  if (leaf_count == 0) {
    for (int rank = 0; rank < world_size; ++rank) shares.push_back({{rank, rank + 1}});
  } else {
    shares = DealLeaves(leaf_count, std::vector<double>(static_cast<size_t>(world_size), 1.0));
  }
  std::vector<Contributor> contributors;
  for (int rank = 0; rank < world_size; ++rank) {
    const LeafShare& share = shares[static_cast<size_t>(rank)];
    for (size_t i = 0; i < share.size(); ++i) {
      contributors.push_back(
          {.rank = rank, .leaves = share[i], .node = static_cast<int>(i), .is_last = i + 1 == share.size()});
    }
  }
  std::sort(contributors.begin(), contributors.end(),
            [](const Contributor& a, const Contributor& b) { return a.leaves.begin < b.leaves.begin; });
  return contributors;
}

}  // namespace starring
