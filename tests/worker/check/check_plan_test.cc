#include "worker/check/check_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace starring {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(RingTargetsTest, AreAllOthersOfASmallRing) {
  EXPECT_THAT(RingTargets(0, 1), IsEmpty());
  EXPECT_THAT(RingTargets(1, 2), ElementsAre(0));
  EXPECT_THAT(RingTargets(2, 4), ElementsAre(0, 1, 3));
}

TEST(RingTargetsTest, AreFewInALargeRing) {
  for (const int rank : {0, 1, 511, 1023}) {
    const std::vector<int> targets = RingTargets(rank, 1024);
    EXPECT_LE(targets.size(), 12u);
    EXPECT_THAT(targets, Contains((rank + 1) % 1024));
    EXPECT_THAT(targets, Contains((rank + 1023) % 1024));
    EXPECT_EQ(std::count(targets.begin(), targets.end(), rank), 0);
  }
}

// What all tests take together, for jobs of every size.
TEST(PlanBandwidthTest, EndsInTime) {
  for (const int tests_per_rank : {1, 2, 4, 256}) {
    for (const int world_size : {1, 2, 64, 100, 1024}) {
      const BandwidthPlan plan = PlanBandwidth(tests_per_rank, world_size);
      const int testers = (world_size + plan.rank_stride - 1) / plan.rank_stride;
      EXPECT_GE(plan.seconds, 0.02);
      EXPECT_LE(plan.seconds, 0.1);
      // One rank that tests is one more than a stride may divide.
      EXPECT_LE(plan.seconds * tests_per_rank * testers, 20 + plan.seconds * tests_per_rank)
          << tests_per_rank << " tests by " << world_size;
    }
  }
}

TEST(PlanBandwidthTest, IsWholeForASmallJob) {
  const BandwidthPlan plan = PlanBandwidth(4, 4);
  EXPECT_EQ(plan.seconds, 0.1);
  EXPECT_EQ(plan.rank_stride, 1);
}

}  // namespace
}  // namespace starring
