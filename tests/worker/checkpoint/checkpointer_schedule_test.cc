#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/checkpoint/checkpointer.h"

namespace starring {
namespace {

using ::testing::ElementsAre;

std::vector<int64_t> DueSteps(const CheckpointSchedule& schedule, int64_t end) {
  std::vector<int64_t> due;
  for (int64_t step = 0; step <= end; ++step) {
    if (schedule.IsDue(step)) due.push_back(step);
  }
  return due;
}

TEST(CheckpointScheduleTest, EveryKEpochsMeansAtTheEndOfEpochK) {
  EXPECT_THAT(DueSteps({.steps_per_epoch = 7, .every_epochs = 2}, 50), ElementsAre(14, 28, 42));
  EXPECT_THAT(DueSteps({.steps_per_epoch = 7, .every_epochs = 1}, 22), ElementsAre(7, 14, 21));
}

TEST(CheckpointScheduleTest, StepsCountOverTheWholeRunBesideEpochs) {
  EXPECT_THAT(DueSteps({.steps_per_epoch = 7, .every_epochs = 1, .every_steps = 4}, 16),
              ElementsAre(4, 7, 8, 12, 14, 16));
  EXPECT_THAT(DueSteps({.steps_per_epoch = 7, .every_epochs = 100, .every_steps = 1}, 3), ElementsAre(1, 2, 3));
}

TEST(CheckpointScheduleTest, NothingIsDueBeforeTheFirstStep) {
  EXPECT_FALSE((CheckpointSchedule{.steps_per_epoch = 7, .every_epochs = 1, .every_steps = 1}).IsDue(0));
}

}  // namespace
}  // namespace starring
