#include "common/reduce/release.h"

#include "gtest/gtest.h"

namespace starring {
namespace {

TEST(ReleaseTest, LockStepWaitsForAllAndAnswersEachWithItsRound) {
  constexpr Release release = Release::LockStep(3);
  EXPECT_FALSE(release.Seals(0));
  EXPECT_FALSE(release.Seals(2));
  EXPECT_TRUE(release.Seals(3));
  EXPECT_EQ(release.AnswerTo(7), 7);
}

}  // namespace
}  // namespace starring
