#include "common/job/leaf_shares.h"

#include <algorithm>
#include <bit>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::ElementsAre;

std::vector<LeafShare> SharesOf(const std::vector<int>& leaf_owners) {
  std::vector<LeafShare> shares;
  for (int rank = 0; rank <= std::ranges::max(leaf_owners); ++rank) shares.push_back(ShareOf(rank, leaf_owners));
  return shares;
}

std::vector<LeafShare> DealEvenly(int leaf_count, int workers) {
  return SharesOf(DealLeavesEvenly(leaf_count, workers));
}

int LoadOf(const LeafShare& share) {
  int load = 0;
  for (const LeafRange& node : share) load += node.size();
  return load;
}

// All partial sums of the tree, as the definition says.
void CollectNodes(LeafRange node, std::vector<LeafRange>* nodes) {
  nodes->push_back(node);
  if (node.size() == 1) return;
  int left = 1;
  while (2 * left < node.size()) left *= 2;
  CollectNodes({node.begin, node.begin + left}, nodes);
  CollectNodes({node.begin + left, node.end}, nodes);
}

TEST(LeafSharesTest, AutoLeavesSixteenSamplesToALeafAndHasAPowerOfTwo) {
  for (const auto& [global_batch, leaves] : std::vector<std::pair<int64_t, int>>{
           {1, 1}, {16, 1}, {31, 1}, {32, 2}, {64, 4}, {127, 4}, {128, 8}, {511, 16}, {512, 32}, {1 << 20, 32}}) {
    EXPECT_EQ(AutoMicroBatches(global_batch), leaves) << global_batch;
  }
}

bool IsTreeNode(LeafRange leaves, int leaf_count) {
  std::vector<LeafRange> nodes;
  CollectNodes({0, leaf_count}, &nodes);
  return std::ranges::count(nodes, leaves) == 1;
}

TEST(LeafSharesTest, EveryLeafIsDealtOnceInNodesLargestFirst) {
  for (int leaf_count = 1; leaf_count <= 40; ++leaf_count) {
    for (int workers = 1; workers <= leaf_count; ++workers) {
      std::vector<int> dealt(static_cast<size_t>(leaf_count));
      for (const LeafShare& share : DealEvenly(leaf_count, workers)) {
        ASSERT_FALSE(share.empty());
        EXPECT_TRUE(std::ranges::is_sorted(share, std::greater<>(), &LeafRange::size));
        // As equal as they can be in time: the largest has no leaf too many.
        EXPECT_LE(LoadOf(share), (leaf_count + workers - 1) / workers);
        for (const LeafRange& node : share) {
          EXPECT_TRUE(IsTreeNode(node, leaf_count)) << node.begin << " " << node.end << " of " << leaf_count;
          for (int leaf = node.begin; leaf < node.end; ++leaf) ++dealt[static_cast<size_t>(leaf)];
        }
      }
      EXPECT_THAT(dealt, ::testing::Each(1)) << leaf_count << " leaves, " << workers << " workers";
    }
  }
}

TEST(LeafSharesTest, OneWorkerHasTheRootAndPowersOfTwoHaveOneNodeEach) {
  for (int leaf_count = 1; leaf_count <= 33; ++leaf_count) {
    EXPECT_THAT(DealEvenly(leaf_count, 1)[0], ElementsAre(LeafRange{0, leaf_count}));
  }
  EXPECT_THAT(DealEvenly(8, 4),
              ElementsAre(LeafShare{{0, 2}}, LeafShare{{2, 4}}, LeafShare{{4, 6}}, LeafShare{{6, 8}}));
}

struct NodeCounts {
  size_t most = 0, all = 0;
};
NodeCounts CountNodes(const std::vector<LeafShare>& shares) {
  NodeCounts counts;
  for (const LeafShare& share : shares) {
    counts.most = std::max(counts.most, share.size());
    counts.all += share.size();
  }
  return counts;
}

TEST(LeafSharesTest, SharesHaveFewNodes) {
  struct Case {
    int leaf_count, workers;
    size_t most, all;
  };
  for (const Case& c : {Case{8, 3, 2, 5}, Case{8, 5, 1, 5}, Case{8, 7, 1, 7}, Case{16, 3, 2, 5}, Case{16, 9, 1, 9},
                        Case{24, 3, 1, 3}, Case{32, 7, 2, 11}}) {
    const NodeCounts counts = CountNodes(DealEvenly(c.leaf_count, c.workers));
    EXPECT_LE(counts.most, c.most) << c.leaf_count << " leaves, " << c.workers << " workers";
    EXPECT_LE(counts.all, c.all) << c.leaf_count << " leaves, " << c.workers << " workers";
  }
}

TEST(LeafSharesTest, AWorkerOfTwiceTheSpeedHasSixOfEightAndNotFive) {
  // 5 : 3 takes the slow one three times 2, 6 : 2 the fast one six times 1: the same time, in 3 messages, not 4.
  const std::vector<LeafShare> shares = SharesOf(DealLeaves(8, std::vector<double>{1.0, 2.0}));
  EXPECT_THAT(shares, ElementsAre(LeafShare{{0, 4}, {4, 6}}, LeafShare{{6, 8}}));
}

TEST(LeafSharesTest, NobodyIsSlowerThanTheBestDivisionMakesTheSlowest) {
  const std::vector<std::vector<double>> speeds = {{1, 3}, {1, 1.5, 4}, {0.3, 0.3, 0.7}, {1, 100}, {2, 2.5, 3, 3.5}};
  for (const std::vector<double>& seconds : speeds) {
    const int leaf_count = 16;
    const std::vector<LeafShare> shares = SharesOf(DealLeaves(leaf_count, seconds));
    double slowest = 0;
    for (size_t w = 0; w < shares.size(); ++w) slowest = std::max(slowest, LoadOf(shares[w]) * seconds[w]);
    // By trial: with less time, the workers together cannot compute all leaves, of which everyone gets one.
    int possible = 0;
    for (const double one : seconds) possible += std::max(1, static_cast<int>(slowest * (1 - 1e-9) / one));
    const bool one_leaf_is_the_slowest = std::ranges::any_of(seconds, [&](double one) { return one == slowest; });
    EXPECT_TRUE(possible < leaf_count || one_leaf_is_the_slowest) << slowest;
  }
}

// Any division has nodes, also one that was not dealt here: those of a fast worker next to a slow one's are joined.
TEST(LeafSharesTest, NodesAreTheLargestWithOneOwner) {
  const std::vector<int> owners = {0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0};
  EXPECT_THAT(ShareOf(0, owners), ElementsAre(LeafRange{8, 11}, LeafRange{0, 2}, LeafRange{2, 3}));
  EXPECT_THAT(ShareOf(1, owners), ElementsAre(LeafRange{4, 8}, LeafRange{3, 4}));
  EXPECT_THAT(ShareOf(2, owners), ElementsAre());
}

TEST(ContributorsTest, WithoutLeavesEveryWorkerIsOne) {
  const std::vector<Contributor> contributors = ContributorsOf(DealLeavesEvenly(0, 3));
  ASSERT_EQ(contributors.size(), 3u);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(contributors[rank].rank, rank);
    EXPECT_EQ(contributors[rank].leaves, (LeafRange{rank, rank + 1}));
    EXPECT_TRUE(contributors[rank].is_last);
    EXPECT_THAT(ShareOf(rank, DealLeavesEvenly(0, 3)), ElementsAre(LeafRange{rank, rank + 1}));
  }
}

TEST(ContributorsTest, AreInTheOrderOfLeavesAndEachRankHasOneLast) {
  for (int workers = 1; workers <= 12; ++workers) {
    const std::vector<Contributor> contributors = ContributorsOf(DealLeavesEvenly(12, workers));
    std::vector<int> last_count(static_cast<size_t>(workers));
    int next = 0;
    for (const Contributor& one : contributors) {
      EXPECT_EQ(one.leaves.begin, next);
      next = one.leaves.end;
      last_count[static_cast<size_t>(one.rank)] += one.is_last ? 1 : 0;
      const LeafShare share = ShareOf(one.rank, DealLeavesEvenly(12, workers));
      EXPECT_EQ(share[static_cast<size_t>(one.node)], one.leaves);
      EXPECT_EQ(one.is_last, one.node + 1 == std::ssize(share));
    }
    EXPECT_EQ(next, 12);
    EXPECT_THAT(last_count, ::testing::Each(1));
  }
}

}  // namespace
}  // namespace starring
