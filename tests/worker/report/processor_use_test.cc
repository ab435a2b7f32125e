#include "worker/report/processor_use.h"

#include <chrono>
#include <ctime>

#include "gtest/gtest.h"

namespace starring {
namespace {

using Clock = std::chrono::steady_clock;

// CPU time that does not come, on a busy machine, is waited for: the loop ends by what the process has used.
void Work(std::clock_t clocks) {
  const std::clock_t end = std::clock() + clocks;
  while (std::clock() < end) {
  }
}

TEST(ProcessorUseTest, NothingWatchedIsZero) { EXPECT_EQ(ProcessorUse().percent(), 0); }

TEST(ProcessorUseTest, WorkCountsOnlyWhileWatched) {
  ProcessorUse use;
  Work(CLOCKS_PER_SEC / 50);
  use.Resume();
  use.Resume();
  const Clock::time_point begin = Clock::now();
  Work(CLOCKS_PER_SEC / 20);
  const double wall = std::chrono::duration<double>(Clock::now() - begin).count();
  use.Pause();
  use.Pause();
  Work(CLOCKS_PER_SEC / 50);
  EXPECT_NEAR(use.percent(), 100 * 0.05 / wall, 15);
}

}  // namespace
}  // namespace starring
