#include "server/elastic/deal_apart.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>

#include "common/base/check.h"
#include "common/job/leaf_shares.h"

namespace starring {
namespace {

bool IsApart(const Deal& deal, const std::vector<uint64_t>& before) {
  for (size_t leaf = 0; leaf < before.size(); ++leaf) {
    if (deal.workers[static_cast<size_t>(deal.leaf_owners[leaf])] == before[leaf]) return false;
  }
  return true;
}

// The nodes of the shares before, the largest first.
std::vector<LeafRange> NodesOf(const std::vector<uint64_t>& before) {
  // ContributorsOf takes ranks, so each worker gets a number.
  std::map<uint64_t, int> numbers;
  std::vector<int> owners;
  for (const uint64_t worker : before) {
    owners.push_back(numbers.emplace(worker, static_cast<int>(numbers.size())).first->second);
  }
  std::vector<LeafRange> nodes;
  for (const Contributor& one : ContributorsOf(owners)) nodes.push_back(one.leaves);
  // Largest first (Graham's rule for the longest processing time, 1969): small nodes then even out the loads.
  std::ranges::stable_sort(nodes, std::greater<>(), &LeafRange::size);
  return nodes;
}

// Gives each node to the worker that will have done it first, of those that had it not.
Deal DealNodes(const std::vector<uint64_t>& workers, const std::vector<uint64_t>& before,
               const std::function<double(uint64_t)>& seconds_per_leaf) {
  std::vector<double> busy(workers.size());
  std::vector<int> owners(before.size(), -1);
  for (const LeafRange& node : NodesOf(before)) {
    int best = -1;
    double best_seconds = std::numeric_limits<double>::infinity();
    for (size_t w = 0; w < workers.size(); ++w) {
      const double seconds = busy[w] + node.size() * seconds_per_leaf(workers[w]);
      // The first of equally fast ones, so that the same arguments give the same deal.
      if (workers[w] == before[static_cast<size_t>(node.begin)] || seconds >= best_seconds) continue;
      best = static_cast<int>(w);
      best_seconds = seconds;
    }
    // There are two workers or more, and only one of them had this node.
    CHECK_GE(best, 0);
    busy[static_cast<size_t>(best)] = best_seconds;
    std::fill(owners.begin() + node.begin, owners.begin() + node.end, best);
  }
  // Ranks without a gap.
  Deal deal;
  std::map<int, int> ranks;
  for (const int owner : owners) {
    const auto [rank, is_new] = ranks.emplace(owner, static_cast<int>(ranks.size()));
    if (is_new) deal.workers.push_back(workers[static_cast<size_t>(owner)]);
    deal.leaf_owners.push_back(rank->second);
  }
  return deal;
}

}  // namespace

Deal DealApart(std::vector<uint64_t> workers, const std::vector<uint64_t>& before,
               const std::function<double(uint64_t)>& seconds_per_leaf) {
  Deal deal;
  for (size_t shift = 0; shift < workers.size(); ++shift) {
    std::vector<double> seconds;
    for (const uint64_t worker : workers) seconds.push_back(seconds_per_leaf(worker));
    deal = {.workers = workers, .leaf_owners = DealLeaves(static_cast<int>(before.size()), seconds)};
    if (workers.size() == 1 || IsApart(deal, before)) return deal;
    // In another order of the workers each gets other leaves.
    std::rotate(workers.begin(), workers.begin() + 1, workers.end());
  }
  return DealNodes(workers, before, seconds_per_leaf);
}

}  // namespace starring
