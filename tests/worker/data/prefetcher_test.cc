#include "worker/data/prefetcher.h"

#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/processor_share.h"

namespace starring {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<Prefetcher> Make(Prefetcher::Options options) {
  if (options.plan == nullptr) options.plan = [](int, int64_t) {};
  if (options.fill == nullptr) options.fill = [](int, int64_t) {};
  auto prefetcher = Prefetcher::Create(std::move(options));
  EXPECT_TRUE(prefetcher.ok()) << prefetcher.status();
  return std::move(prefetcher).value();
}

struct Size {
  int depth;
  int filler_count;
};

class PrefetcherSizeTest : public ::testing::TestWithParam<Size> {};

INSTANTIATE_TEST_SUITE_P(AllSizes, PrefetcherSizeTest,
                         ::testing::Values(Size{0, 1}, Size{0, 4}, Size{1, 1}, Size{1, 4}, Size{2, 2}, Size{3, 1},
                                           Size{3, 2}, Size{5, 8}, Size{16, 3}),
                         [](const ::testing::TestParamInfo<Size>& size) {
                           return "Depth" + std::to_string(size.param.depth) + "Fillers" +
                                  std::to_string(size.param.filler_count);
                         });

// The slots are plain memory, so that ThreadSanitizer sees a race between a filler and the consumer.
TEST_P(PrefetcherSizeTest, HandsOutEveryStepOnceInOrder) {
  const auto [depth, filler_count] = GetParam();
  std::vector<int64_t> planned(static_cast<size_t>(Prefetcher::SlotCount(depth)));
  std::vector<int64_t> filled(planned.size());
  int64_t next_planned = 5;
  const auto prefetcher = Make({.depth = depth,
                                .filler_count = filler_count,
                                .first_step = 5,
                                .end_step = 505,
                                .plan =
                                    [&](int slot, int64_t step) {
                                      EXPECT_EQ(step, next_planned++);
                                      planned[slot] = step;
                                    },
                                .fill =
                                    [&](int slot, int64_t step) {
                                      EXPECT_EQ(planned[slot], step);
                                      filled[slot] = step;
                                    }});
  for (int64_t step = 5; step < 505; ++step) {
    const auto slot = prefetcher->Next();
    ASSERT_TRUE(slot.ok()) << slot.status();
    EXPECT_EQ(filled[*slot], step);
    filled[*slot] = -1;  // the slot is the consumer's: no filler may read or write it
  }
  for (int i = 0; i < 2; ++i) {
    const auto end = prefetcher->Next();
    EXPECT_EQ(end.status().code(), absl::StatusCode::kOutOfRange);
    EXPECT_THAT(end.status().message(), HasSubstr("no batch after step 504"));
  }
}

TEST_P(PrefetcherSizeTest, MayBeDestroyedAtAnyMoment) {
  const auto [depth, filler_count] = GetParam();
  for (int taken = 0; taken < 30; ++taken) {
    const auto prefetcher = Make({.depth = depth, .filler_count = filler_count, .end_step = 25});
    for (int i = 0; i < taken; ++i) prefetcher->Next().IgnoreError();
  }
}

TEST(PrefetcherTest, StaysDepthStepsAhead) {
  constexpr int kDepth = 3;
  std::mutex mutex;
  std::condition_variable changed;
  int64_t filled = 0;
  const auto prefetcher = Make({.depth = kDepth, .end_step = 1000, .fill = [&](int, int64_t) {
                                  const std::lock_guard lock(mutex);
                                  ++filled;
                                  changed.notify_one();
                                }});
  for (int64_t taken = 1; taken <= 50; ++taken) {
    ASSERT_TRUE(prefetcher->Next().ok());
    std::unique_lock lock(mutex);
    // All slots get filled but the one that this Next has released, which may or may not be filled by now.
    EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(30), [&] { return filled >= taken - 1 + kDepth; }));
    EXPECT_LE(filled, taken + kDepth);
  }
}

TEST(PrefetcherTest, FillersFillAtTheSameTimeButPlanOneByOne) {
  // Each of the two fills waits for the other, so that only the prefetcher keeps the two plans apart.
  std::promise<void> reached[2];
  std::shared_future<void> other[2] = {reached[1].get_future(), reached[0].get_future()};
  int planned = 0;  // plain, for ThreadSanitizer
  std::atomic<int> met{0};
  const auto prefetcher = Make({.depth = 2,
                                .filler_count = 2,
                                .end_step = 2,
                                .plan = [&](int, int64_t) { ++planned; },
                                .fill =
                                    [&](int, int64_t step) {
                                      reached[step].set_value();
                                      met +=
                                          other[step].wait_for(std::chrono::seconds(30)) == std::future_status::ready;
                                    }});
  EXPECT_TRUE(prefetcher->Next().ok());
  EXPECT_TRUE(prefetcher->Next().ok());
  EXPECT_EQ(planned, 2);
  EXPECT_EQ(met, 2);
}

// A trainer that waits for slow data, and fillers that wait for a slow trainer.
TEST(PrefetcherTest, WaitingCostsNoCore) {
  const std::chrono::seconds slow(1);
  const auto prefetcher = Make({.depth = 3, .filler_count = 3, .end_step = 1000, .fill = [&](int, int64_t step) {
                                  if (step == 0) std::this_thread::sleep_for(slow);
                                }});
  const ProcessorShare trainer_waits;
  ASSERT_TRUE(prefetcher->Next().ok());
  EXPECT_LT(trainer_waits.Read(), 0.1);
  const ProcessorShare fillers_wait;
  std::this_thread::sleep_for(slow);
  EXPECT_LT(fillers_wait.Read(), 0.1);
}

TEST(PrefetcherTest, AMissedDeadlineNamesTheStepAndMayBeTriedAgain) {
  std::promise<void> release;
  std::shared_future<void> released(release.get_future());
  const auto prefetcher = Make({.depth = 2,
                                .first_step = 40,
                                .end_step = 100,
                                .deadline = absl::Milliseconds(20),
                                .fill = [&](int, int64_t step) {
                                  if (step == 41) released.wait();
                                }});
  // On a busy machine step 40 may miss the deadline too.
  absl::StatusOr<int> slot = prefetcher->Next();
  while (absl::IsDeadlineExceeded(slot.status())) slot = prefetcher->Next();
  ASSERT_TRUE(slot.ok()) << slot.status();
  for (int i = 0; i < 2; ++i) {
    const auto late = prefetcher->Next();
    EXPECT_EQ(late.status().code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(late.status().message(), HasSubstr("batch of step 41 within 20ms"));
  }
  release.set_value();
  do slot = prefetcher->Next();
  while (absl::IsDeadlineExceeded(slot.status()));
  EXPECT_TRUE(slot.ok()) << slot.status();
}

TEST(PrefetcherTest, NoStepsAtAllIsTheEnd) {
  for (const int depth : {0, 2}) {
    const auto prefetcher = Make({.depth = depth, .first_step = 9, .end_step = 9});
    EXPECT_EQ(prefetcher->Next().status().code(), absl::StatusCode::kOutOfRange);
  }
}

}  // namespace
}  // namespace starring
