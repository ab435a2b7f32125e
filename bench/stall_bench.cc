// What it costs a job at full speed that a stuck one can name its culprit: the code that runs in every step, and the
// messages that leave now and then.
//
// A step of a ring or star of 2 workers enters some 12 phases and 4 buckets, shares with the vote once a second, and
// tells its progress at most 4 times a second: the sum of these times over the time of a step is the share.
#include <array>
#include <chrono>
#include <string>

#include "benchmark/benchmark.h"
#include "common/progress_state.h"
#include "worker/exchange/peer/peer_watch.h"
#include "worker/straggler_watch.h"

namespace starring {
namespace {

using Clock = std::chrono::steady_clock;

// StepTimer has looked at the clock already.
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

// Once a second, of 200 steps.
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

// A glance of the thread that stays in MPI, clock included.
void BM_GlanceWithNothingToTell(benchmark::State& state) {
  ProgressState progress;
  PeerWatch watch({.rank = 0,
                   .world_size = 2,
                   .stall = {.times = {.report_after = std::chrono::seconds(4)}, .progress = &progress, .say = nullptr},
                   .send = [](int, NoticeKind, const std::string&) {}});
  for (auto _ : state) watch.TellProgress(Clock::now());
}
BENCHMARK(BM_GlanceWithNothingToTell);

// Four times a second, without what MPI takes to send it.
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
