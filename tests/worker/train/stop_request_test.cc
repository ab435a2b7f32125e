#include "worker/train/stop_request.h"

#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

// How far this process sees the machine's clock set forward or back.
static std::atomic<int> wall_clock_ahead_s = 0;

// Replaces libc's function.
extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const auto result = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  if (clock == CLOCK_REALTIME) time->tv_sec += wall_clock_ahead_s;
  return result;
}

namespace starring {
namespace {

// Answers Sum as if every other rank had voted `others_stop` and had been as fast as this one.
class FakeExchange : public GradientExchange {
 public:
  explicit FakeExchange(int world_size) : world_size_(world_size) {}
  absl::Status Start(const JobSpec&, std::span<float>) override { return absl::OkStatus(); }
  void Submit(const Submission&) override {}
  absl::Status Await(int64_t, int) override { return absl::OkStatus(); }
  absl::Status Sum(SumPurpose, std::span<double> values) override {
    ++sums;
    if (fails) return absl::DeadlineExceededError("rank 1 is missing");
    values[0] += others_stop ? 1 : 0;
    values[1] *= world_size_;
    return absl::OkStatus();
  }
  absl::Status GatherOptimizerState(std::span<const std::span<float>>) override { return absl::OkStatus(); }
  void Abort(const absl::Status&) override {}
  absl::Status Finish() override { return absl::OkStatus(); }
  ExchangeCounters counters() const override { return {}; }

  int sums = 0;
  bool others_stop = false;
  bool fails = false;

 private:
  const int world_size_;
};

// The signal that a service manager sends to a whole group and the one that the launcher then sends are one request.
TEST(StopRequestTest, TwoSignalsAtOnceAreOneWishAndALaterOneEndsTheProcess) {
  const auto run = [] {
    InstallStopSignals();
    if (StopRequested()) _exit(1);
    raise(SIGTERM);
    raise(SIGTERM);
    raise(SIGUSR1);
    if (!StopRequested()) _exit(2);
    fputs("asked, and not ended", stderr);
    usleep(1'050'000);  // within a second of the first signal, the next would be the same request
    raise(SIGINT);
    _exit(3);
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(130), "asked, and not ended");
}

TEST(StopVoteTest, OneWorkerStopsAtOnceWithoutAVote) {
  FakeExchange exchange(1);
  StopVote vote(1, 0, &exchange);
  EXPECT_FALSE(*vote.Agree(0, false));
  EXPECT_TRUE(*vote.Agree(1, true));
  EXPECT_EQ(exchange.sums, 0);
}

TEST(StopVoteTest, StopsWithARankThatWasAskedEvenIfThisOneWasNot) {
  FakeExchange exchange(3);
  exchange.others_stop = true;
  StopVote vote(3, 100, &exchange);
  int64_t step = 100;
  while (!*vote.Agree(step, false)) {
    ASSERT_LT(++step, 200);
  }
  EXPECT_GT(step, 100);
  EXPECT_EQ(exchange.sums, 1);
}

TEST(StopVoteTest, VotesRarelyWhenStepsAreFast) {
  FakeExchange exchange(2);
  StopVote vote(2, 0, &exchange);
  for (int64_t step = 0; step < 5000; ++step) ASSERT_FALSE(*vote.Agree(step, false));
  EXPECT_GE(exchange.sums, 1);
  EXPECT_LE(exchange.sums, 5);
}

// Votes are a second apart: some hundred steps here, ten thousand if steps seem to take no time or negative time.
TEST(StopVoteTest, AWallClockThatIsSetBackDoesNotPutOffTheNextVote) {
  FakeExchange exchange(2);
  StopVote vote(2, 0, &exchange);
  const absl::Time before = absl::Now();
  usleep(80'000);
  wall_clock_ahead_s = -3600;
  EXPECT_LT(absl::Now(), before);
  int64_t step = 0;
  while (exchange.sums < 2 && step < 1000) ASSERT_FALSE(*vote.Agree(step++, false));
  wall_clock_ahead_s = 0;
  EXPECT_EQ(exchange.sums, 2) << "in " << step << " steps";
}

TEST(StopVoteTest, PassesTheExchangesErrorOn) {
  FakeExchange exchange(2);
  exchange.fails = true;
  StopVote vote(2, 0, &exchange);
  absl::StatusOr<bool> stop = false;
  for (int64_t step = 0; step < 100 && stop.ok(); ++step) stop = vote.Agree(step, false);
  EXPECT_EQ(stop.status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(StopVoteTest, CarriesNumbersOfEveryRankWithoutAMessageMore) {
  FakeExchange exchange(3);
  std::vector<double> all;
  int64_t steps_seen = 0;
  StopVote vote(3, 0, &exchange,
                {.rank = 1,
                 .count = 2,
                 .give =
                     [](std::span<double> mine) {
                       mine[0] = 5;
                       mine[1] = 7;
                     },
                 .take =
                     [&](int64_t steps, std::span<const double> shared) {
                       steps_seen += steps;
                       all.assign(shared.begin(), shared.end());
                     }});
  int64_t step = 0;
  for (; exchange.sums == 0; ++step) ASSERT_FALSE(*vote.Agree(step, false));
  EXPECT_EQ(all, (std::vector<double>{0, 0, 5, 7, 0, 0}));
  EXPECT_EQ(steps_seen, step - 1);
}

}  // namespace
}  // namespace starring
