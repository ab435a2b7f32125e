#include "worker/model/network_program.h"

#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using testing::ElementsAre;

TEST(MemoryPlanTest, NothingNeedsNothing) {
  const MemoryPlan plan = PlanMemory({}, 16);
  EXPECT_EQ(plan.size, 0);
  EXPECT_THAT(plan.offsets, ElementsAre());
}

TEST(MemoryPlanTest, BuffersThatNeverMeetShareAPlace) {
  const std::vector<BufferLife> buffers = {{.size = 32, .first = 0, .last = 1}, {.size = 16, .first = 2, .last = 3}};
  const MemoryPlan plan = PlanMemory(buffers, 16);
  EXPECT_THAT(plan.offsets, ElementsAre(0, 0));
  EXPECT_EQ(plan.size, 32);
}

// An instruction reads its input while it writes its output, so they must not share memory.
TEST(MemoryPlanTest, TheLastUseOfOneIsNotTheFirstOfAnother) {
  const std::vector<BufferLife> buffers = {{.size = 16, .first = 0, .last = 1}, {.size = 16, .first = 1, .last = 2}};
  const MemoryPlan plan = PlanMemory(buffers, 16);
  EXPECT_NE(plan.offsets[0], plan.offsets[1]);
  EXPECT_EQ(plan.size, 32);
}

TEST(MemoryPlanTest, SizesAreRoundedUpToTheAlignment) {
  const std::vector<BufferLife> buffers = {{.size = 10, .first = 0, .last = 0}, {.size = 17, .first = 0, .last = 0}};
  const MemoryPlan plan = PlanMemory(buffers, 16);
  EXPECT_THAT(plan.offsets, ElementsAre(32, 0));
  EXPECT_EQ(plan.size, 48);
}

TEST(MemoryPlanTest, FillsAGapBetweenTwoThatLive) {
  // The buffers of 64 and 32 are alive all the time, at first with 48 between them; 16 comes when 48 is dead.
  const std::vector<BufferLife> buffers = {{.size = 64, .first = 0, .last = 9},
                                           {.size = 48, .first = 0, .last = 2},
                                           {.size = 32, .first = 0, .last = 9},
                                           {.size = 16, .first = 5, .last = 6}};
  const MemoryPlan plan = PlanMemory(buffers, 16);
  EXPECT_THAT(plan.offsets, ElementsAre(0, 64, 112, 64));
  EXPECT_EQ(plan.size, 144);
}

// The arena is never larger than the sum of all sizes and never smaller than what is alive at one time, and no two
// buffers overlap.
TEST(MemoryPlanTest, RandomLivesNeverOverlap) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    std::vector<BufferLife> buffers(1 + random() % 40);
    int64_t sum = 0;
    for (BufferLife& buffer : buffers) {
      buffer.size = random() % 1000;
      buffer.first = static_cast<int>(random() % 50);
      buffer.last = buffer.first + static_cast<int>(random() % 10);
      sum += (buffer.size + 15) / 16 * 16;
    }
    const MemoryPlan plan = PlanMemory(buffers, 16);
    EXPECT_LE(plan.size, sum);
    for (size_t a = 0; a < buffers.size(); ++a) {
      EXPECT_EQ(plan.offsets[a] % 16, 0);
      EXPECT_LE(plan.offsets[a] + buffers[a].size, plan.size);
      for (size_t b = 0; b < a; ++b) {
        const bool in_time = buffers[a].first <= buffers[b].last && buffers[b].first <= buffers[a].last;
        const bool in_space =
            plan.offsets[a] < plan.offsets[b] + buffers[b].size && plan.offsets[b] < plan.offsets[a] + buffers[a].size;
        EXPECT_FALSE(in_time && in_space) << a << " and " << b;
      }
    }
    for (int time = 0; time < 60; ++time) {
      int64_t alive = 0;
      for (const BufferLife& buffer : buffers) {
        if (buffer.first <= time && time <= buffer.last) alive += buffer.size;
      }
      EXPECT_LE(alive, plan.size);
    }
  }
}

}  // namespace
}  // namespace starring
