#include "common/job/leaf_shares.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "common/base/check.h"

namespace starring {
namespace {

constexpr int kAutoMicroBatchesMax = 32;
constexpr int64_t kAutoLeafSamplesMin = 16;

// A load is cut in powers of two (DealLeaves), and each of them is one node.
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
  // With more time no worker computes fewer leaves, so bisection finds the shortest time that suffices.
  const auto best = std::partition_point(times.begin(), times.end(), [&](double time) { return !suffices(time); });
  CHECK(best != times.end());
  return Capacities(leaf_count, seconds_per_leaf, *best);
}

// Loads within the capacities, of `nodes_max` nodes at most each, with the fewest nodes in all; empty if there are
// none.
std::vector<int> ChooseLoads(int leaf_count, std::span<const int> capacities, int nodes_max) {
  constexpr int kNone = INT32_MAX;
  const size_t worker_count = capacities.size();
  // fewest[w][n]: nodes of the workers from w on, which have n leaves together. Later workers are decided first, so
  // that walking forward takes the largest load for the first worker.
  std::vector<std::vector<int>> fewest(worker_count + 1, std::vector<int>(static_cast<size_t>(leaf_count) + 1, kNone));
  fewest[worker_count][0] = 0;
  const auto nodes_with = [&](size_t worker, int leaves, int load) {
    const int others = fewest[worker + 1][static_cast<size_t>(leaves - load)];
    return others == kNone || NodeCount(load) > nodes_max ? kNone : others + NodeCount(load);
  };
  // Cost: workers times leaves times the largest capacity.
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

// Adds the largest nodes within `node` that have one owner, from left to right.
void CollectNodes(LeafRange node, std::span<const int> leaf_owners, std::vector<Contributor>* nodes) {
  const std::span<const int> owners =
      leaf_owners.subspan(static_cast<size_t>(node.begin), static_cast<size_t>(node.size()));
  if (std::ranges::count(owners, owners.front()) == node.size()) {
    nodes->push_back({.rank = owners.front(), .leaves = node});
    return;
  }
  const int middle = TreeMiddle(node);
  CollectNodes({node.begin, middle}, leaf_owners, nodes);
  CollectNodes({middle, node.end}, leaf_owners, nodes);
}

}  // namespace

int AutoMicroBatches(int64_t global_batch) {
  const int64_t leaves = std::clamp<int64_t>(global_batch / kAutoLeafSamplesMin, 1, kAutoMicroBatchesMax);
  return static_cast<int>(std::bit_floor(static_cast<uint64_t>(leaves)));
}

std::vector<int> DealLeaves(int leaf_count, std::span<const double> seconds_per_leaf) {
  CHECK_GE(seconds_per_leaf.size(), 1);
  CHECK_LE(seconds_per_leaf.size(), static_cast<size_t>(leaf_count));
  for (const double seconds : seconds_per_leaf) CHECK(std::isfinite(seconds) && seconds > 0) << seconds;
  const std::vector<int> capacities = BestCapacities(leaf_count, seconds_per_leaf);
  std::vector<int> loads;
  // The nodes of one worker count before those of all, so the first limit with any loads is the one.
  for (int nodes_max = 1; loads.empty(); ++nodes_max) loads = ChooseLoads(leaf_count, capacities, nodes_max);

  // A block that is placed after larger ones only begins at a multiple of its size: it is a node of the tree.
  std::vector<int> owners;
  for (unsigned size = std::bit_floor(static_cast<unsigned>(leaf_count)); size > 0; size /= 2) {
    for (size_t worker = 0; worker < loads.size(); ++worker) {
      if ((static_cast<unsigned>(loads[worker]) & size) != 0)
        owners.insert(owners.end(), size, static_cast<int>(worker));
    }
  }
  CHECK_EQ(std::ssize(owners), leaf_count);
  return owners;
}

std::vector<int> DealLeavesEvenly(int leaf_count, int world_size) {
  CHECK_GE(world_size, 1);
  if (leaf_count > 0) return DealLeaves(leaf_count, std::vector<double>(static_cast<size_t>(world_size), 1.0));
  std::vector<int> owners(static_cast<size_t>(world_size));
  std::iota(owners.begin(), owners.end(), 0);
  return owners;
}

std::vector<Contributor> ContributorsOf(std::span<const int> leaf_owners) {
  CHECK(!leaf_owners.empty());
  std::vector<Contributor> contributors;
  CollectNodes({0, static_cast<int>(leaf_owners.size())}, leaf_owners, &contributors);
  std::vector<Contributor*> by_share;
  for (Contributor& one : contributors) by_share.push_back(&one);
  // The sort is stable, so the earlier leaves decide between equally large nodes.
  std::ranges::stable_sort(by_share, {},
                           [](const Contributor* one) { return std::pair(one->rank, -one->leaves.size()); });
  for (size_t i = 0; i < by_share.size(); ++i) {
    const bool is_first = i == 0 || by_share[i - 1]->rank != by_share[i]->rank;
    by_share[i]->node = is_first ? 0 : by_share[i - 1]->node + 1;
    by_share[i]->is_last = i + 1 == by_share.size() || by_share[i + 1]->rank != by_share[i]->rank;
  }
  return contributors;
}

LeafShare ShareOf(int rank, std::span<const int> leaf_owners) {
  LeafShare share;
  for (const Contributor& one : ContributorsOf(leaf_owners)) {
    if (one.rank == rank) share.push_back(one.leaves);
  }
  std::ranges::stable_sort(share, std::greater<>(), &LeafRange::size);
  return share;
}

}  // namespace starring
