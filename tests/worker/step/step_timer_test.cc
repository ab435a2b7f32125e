#include "worker/step/step_timer.h"

#include <chrono>
#include <ctime>
#include <numeric>

#include "gtest/gtest.h"

namespace starring {
namespace {

void Spin(std::chrono::microseconds duration) {
  for (const auto end = StepTimer::Clock::now() + duration; StepTimer::Clock::now() < end;) {
  }
}

TEST(StepTimerTest, PartsAddUpToTheStepAndNestedOnesAreNotCountedTwice) {
  StepTimer timer(/*warmup_steps=*/1);
  for (int step = 0; step < 4; ++step) {
    timer.BeginStep();
    EXPECT_EQ(timer.Enter(StepPart::kForward), StepPart::kOther);
    Spin(std::chrono::microseconds(500));
    const StepPart outer = timer.Enter(StepPart::kExposedExchange);
    EXPECT_EQ(outer, StepPart::kForward);
    Spin(std::chrono::microseconds(1000));
    timer.Enter(outer);
    Spin(std::chrono::microseconds(500));
    timer.EndStep();
  }
  const StepSummary summary = timer.Summary();
  EXPECT_EQ(summary.steps_measured, 3);
  EXPECT_GE(summary.part_ms[static_cast<int>(StepPart::kForward)], 1.0);
  EXPECT_GE(summary.part_ms[static_cast<int>(StepPart::kExposedExchange)], 1.0);
  EXPECT_GE(summary.p50_ms, 2.0);
  EXPECT_LE(summary.p50_ms, summary.p95_ms);
  EXPECT_LE(summary.p99_ms, summary.max_ms);
  EXPECT_NEAR(summary.mean_ms, std::accumulate(summary.part_ms.begin(), summary.part_ms.end(), 0.0), 1e-9);
}

TEST(StepTimerTest, TellsWhereTheThreadIs) {
  ProgressState progress;
  progress.set_step(3);
  StepTimer timer(0, nullptr, &progress);
  timer.BeginStep();
  const auto phase = [&](StepPart part) {
    timer.Enter(part);
    return progress.Read(StepTimer::Clock::now()).phase;
  };
  EXPECT_EQ(phase(StepPart::kDataWait), WorkPhase::kReadData);
  EXPECT_EQ(phase(StepPart::kHostToDevice), WorkPhase::kReadData);
  EXPECT_EQ(phase(StepPart::kForward), WorkPhase::kForward);
  EXPECT_EQ(phase(StepPart::kExposedExchange), WorkPhase::kExchange);
  EXPECT_EQ(phase(StepPart::kBackward), WorkPhase::kBackward);
  EXPECT_EQ(phase(StepPart::kOther), WorkPhase::kBetweenSteps);
  EXPECT_EQ(progress.Read(StepTimer::Clock::now()).step, 3);
}

TEST(StepTimerTest, NothingMeasuredIsAllZero) {
  StepTimer timer(5);
  timer.BeginStep();
  timer.EndStep();
  EXPECT_EQ(timer.Summary().steps_measured, 0);
  EXPECT_EQ(timer.Summary().p99_ms, 0);
}

// Ends when the process has used this much CPU time, however long a busy machine takes to give it.
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
  const StepTimer::Clock::time_point begin = StepTimer::Clock::now();
  Work(CLOCKS_PER_SEC / 20);
  const double wall = std::chrono::duration<double>(StepTimer::Clock::now() - begin).count();
  use.Pause();
  use.Pause();
  Work(CLOCKS_PER_SEC / 50);
  EXPECT_NEAR(use.percent(), 100 * 0.05 / wall, 15);
}

}  // namespace
}  // namespace starring
