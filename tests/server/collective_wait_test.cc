#include "server/collective_wait.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;

const CollectiveWait::Time kStart{seconds(100)};

TEST(CollectiveWaitTest, CountsWhoCameNotHowOften) {
  CollectiveWait wait(2);
  EXPECT_TRUE(wait.Add({.rank = 1, .lane = 0}, kStart));
  EXPECT_FALSE(wait.Add({.rank = 1, .lane = 0}, kStart));
  EXPECT_FALSE(wait.complete());
  EXPECT_TRUE(wait.Has(1));
  EXPECT_FALSE(wait.Has(0));
  EXPECT_TRUE(wait.Add({.rank = 0, .lane = 0}, kStart));
  EXPECT_TRUE(wait.complete());
}

TEST(CollectiveWaitTest, AnswersWhereARequestCameFromLast) {
  CollectiveWait wait(2);
  wait.Add({.rank = 1, .lane = 0}, kStart);
  wait.Add({.rank = 1, .lane = 3}, kStart);
  wait.Add({.rank = 0, .lane = 2}, kStart);
  EXPECT_THAT(wait.Waiting(), ElementsAre(LaneId{0, 2}, LaneId{1, 3}));
  EXPECT_THAT(wait.Take(), ElementsAre(LaneId{0, 2}, LaneId{1, 3}));
  EXPECT_TRUE(wait.empty());
  EXPECT_THAT(wait.Take(), ElementsAre());
}

TEST(CollectiveWaitTest, IsAsOldAsItsFirstPart) {
  CollectiveWait wait(3);
  wait.Add({.rank = 1, .lane = 0}, kStart);
  wait.Add({.rank = 0, .lane = 0}, kStart + seconds(5));
  EXPECT_EQ(wait.since(), kStart);
  wait.Take();
  wait.Add({.rank = 0, .lane = 0}, kStart + seconds(9));
  EXPECT_EQ(wait.since(), kStart + seconds(9));
}

TEST(CollectiveWaitTest, NamesWhoIsMissing) {
  CollectiveWait wait(4);
  wait.Add({.rank = 2, .lane = 0}, kStart);
  EXPECT_EQ(wait.DescribeMissing(), "ranks 0, 1, 3 have");
  wait.Add({.rank = 0, .lane = 0}, kStart);
  wait.Add({.rank = 3, .lane = 0}, kStart);
  EXPECT_EQ(wait.DescribeMissing(), "rank 1 has");
}

}  // namespace
}  // namespace starring
