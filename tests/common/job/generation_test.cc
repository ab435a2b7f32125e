#include "common/job/generation.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

TEST(GenerationTest, ThereIsASnapshotEverySoManyStepsAndWhereAnEpochEnds) {
  std::vector<int64_t> steps;
  for (int64_t step = 0; step <= 40; ++step) {
    if (IsSnapshotStep(step, 15, 20)) steps.push_back(step);
  }
  EXPECT_THAT(steps, testing::ElementsAre(15, 20, 30, 40));
}

}  // namespace
}  // namespace starring
