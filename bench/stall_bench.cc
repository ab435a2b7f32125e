// The cost of stall reports to a job that is not stuck: the code that runs in every step, and the messages that leave a
// few times a second.
//
// A step of a ring or star of 2 workers enters about 12 phases and 4 buckets, shares numbers with the vote once a
// second, and tells its progress at most 4 times a second. The sum of these times, divided by the time of a step, is
// the cost.
#include <array>
#include <chrono>
#include <string>

#include "benchmark/benchmark.h"
#include "common/transport/peer_watch.h"
#include "common/watch/progress_state.h"
#include "worker/train/straggler_watch.h"

namespace starring {
namespace {

using Clock = std::chrono::steady_clock;

// Without reading the clock, which StepTimer does anyway.
void BM_EnterPhase(benchmark::State& state) {
  ProgressState progress;
  const Clock::time_point now = Clock::now();
  for (auto _ : state) {
    progress.Enter(WorkPhase::kForward, now);
    progress.Enter(WorkPhase::kExchange, now);
    benchmark::DoNotOptimize(progress);
  }
  state.SetItemsProcessed(2 * state.iterations());
}
BENCHMARK(BM_EnterPhase);

void BM_SetBucket(benchmark::State& state) {
  ProgressState progress;
  int bucket = 0;
  for (auto _ : state) {
    progress.set_bucket(bucket++ & 7);
    benchmark::DoNotOptimize(progress);
  }
}
BENCHMARK(BM_SetBucket);

void BM_AddStep(benchmark::State& state) {
  StragglerWatch watch(2);
  std::array<double, kStepPartCount> seconds = {};
  for (auto _ : state) {
    seconds[1] += 1e-6;
    watch.AddStep(seconds);
  }
}
BENCHMARK(BM_AddStep);

// Happens once a second, over 200 steps.
void BM_ShareAndTake(benchmark::State& state) {
  StragglerWatch watch(2);
  std::array<double, kStepPartCount> seconds = {};
  std::array<double, 2 * StragglerWatch::kShared> all = {};
  for (auto _ : state) {
    state.PauseTiming();
    for (int i = 0; i < StragglerWatch::kWindowSteps; ++i) watch.AddStep(seconds);
    state.ResumeTiming();
    watch.Share(std::span(all).first(StragglerWatch::kShared));
    watch.Take(StragglerWatch::kWindowSteps, all);
    benchmark::DoNotOptimize(watch.Find());
  }
}
BENCHMARK(BM_ShareAndTake);

// A visit of the thread that drives MPI, including the reading of the clock.
void BM_GlanceWithNothingToTell(benchmark::State& state) {
  ProgressState progress;
  PeerWatch watch({.rank = 0,
                   .world_size = 2,
                   .stall = {.times = {.report_after = std::chrono::seconds(4)}, .progress = &progress, .say = nullptr},
                   .send = [](int, NoticeKind, const std::string&) {}});
  for (auto _ : state) watch.TellProgress(Clock::now());
}
BENCHMARK(BM_GlanceWithNothingToTell);

// Happens four times a second; without the time that MPI needs to send the message.
void BM_TellAndHearProgress(benchmark::State& state) {
  ProgressState progress;
  Clock::time_point now = Clock::now();
  PeerWatch* self = nullptr;
  PeerWatch watch(
      {.rank = 0,
       .world_size = 2,
       .stall = {.times = {.report_after = std::chrono::seconds(4)}, .progress = &progress, .say = nullptr},
       .send = [&](int peer, NoticeKind kind, const std::string& text) { self->OnNotice(peer, kind, text, now); }});
  self = &watch;
  int64_t step = 0;
  for (auto _ : state) {
    now += std::chrono::seconds(1);
    progress.set_step(++step);
    progress.Enter(WorkPhase::kForward, now);
    watch.TellProgress(now);
  }
}
BENCHMARK(BM_TellAndHearProgress);

}  // namespace
}  // namespace starring
