#include "server/elastic/deal_apart.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include "common/job/leaf_shares.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using testing::ElementsAre;

double OneSecond(uint64_t /*worker*/) { return 1; }

TEST(DealApartTest, SharesGoToTheNextWorkerAsAWhole) {
  const Deal deal = DealApart({11, 12}, {11, 11, 12, 12}, OneSecond);
  EXPECT_THAT(deal.workers, ElementsAre(12, 11));
  EXPECT_THAT(deal.leaf_owners, ElementsAre(0, 0, 1, 1));
}

TEST(DealApartTest, OneWorkerHasAll) {
  const Deal deal = DealApart({11}, {11, 12}, OneSecond);
  EXPECT_THAT(deal.workers, ElementsAre(11));
  EXPECT_THAT(deal.leaf_owners, ElementsAre(0, 0));
}

TEST(DealApartTest, AWorkerThatHadAllIsLeftOut) {
  const Deal deal = DealApart({11, 12, 13}, {11, 11, 11, 11}, OneSecond);
  EXPECT_THAT(deal.workers, testing::Not(testing::Contains(11U)));
  for (const int owner : deal.leaf_owners) EXPECT_NE(deal.workers[static_cast<size_t>(owner)], 11U);
}

// Whoever has come and gone meanwhile, and however fast they are.
TEST(DealApartTest, NoLeafHasItsWorkerAgain) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    const auto leaves = static_cast<int>(2 + random() % 20);
    std::vector<double> speeds(8);
    for (double& speed : speeds) speed = 0.5 + static_cast<double>(random() % 10);
    const auto had = 1 + random() % std::min(leaves, 4);
    std::vector<uint64_t> before;
    for (const int owner : DealLeavesEvenly(leaves, static_cast<int>(had))) {
      before.push_back(static_cast<uint64_t>(owner));
    }
    std::vector<uint64_t> workers;
    for (uint64_t worker = 0; worker < 8; ++worker) {
      if (std::ssize(workers) < leaves && random() % 2 == 0) workers.push_back(worker);
    }
    if (workers.size() < 2) continue;
    const Deal deal = DealApart(workers, before, [&](uint64_t worker) { return speeds[worker]; });
    ASSERT_EQ(std::ssize(deal.leaf_owners), leaves);
    std::set<uint64_t> used;
    for (size_t leaf = 0; leaf < before.size(); ++leaf) {
      ASSERT_LT(static_cast<size_t>(deal.leaf_owners[leaf]), deal.workers.size());
      const uint64_t worker = deal.workers[static_cast<size_t>(deal.leaf_owners[leaf])];
      used.insert(worker);
      EXPECT_NE(worker, before[leaf]) << "round " << round << ", leaf " << leaf;
      EXPECT_THAT(workers, testing::Contains(worker));
    }
    EXPECT_EQ(used.size(), deal.workers.size()) << "a rank has no leaf";
  }
}

}  // namespace
}  // namespace starring
