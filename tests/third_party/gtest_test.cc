#include "gtest/gtest.h"

#include <vector>

#include "gmock/gmock.h"

namespace starring {
namespace {

TEST(Gtest, MatchersLink) { EXPECT_THAT(std::vector<int>({1, 2}), testing::ElementsAre(1, testing::Gt(1))); }

TEST(GtestDeathTest, DeathTestsRun) { EXPECT_DEATH(abort(), ""); }

}  // namespace
}  // namespace starring
