#include "worker/train/straggler_watch.h"

#include <iterator>
#include <vector>

#include "common/base/limits.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

// The numbers that ranks share if every phase takes 1 ms, except one phase of one rank.
std::vector<double> Shared(int world_size, int rank = -1, int phase = 0, double seconds = 0) {
  std::vector<double> all(world_size * StragglerWatch::kShared, 1e-3);
  if (rank >= 0) all[rank * StragglerWatch::kShared + phase] = seconds;
  return all;
}

TEST(StragglerWatchTest, NamesTheRankThatIsSlowestInMostOfTheLastStepsWithItsPhase) {
  StragglerWatch watch(4);
  watch.Take(150, Shared(4, 2, 1, 3e-3));
  EXPECT_FALSE(watch.Find().has_value()) << "fewer steps than the window";
  watch.Take(60, Shared(4));
  ASSERT_TRUE(watch.Find().has_value());
  EXPECT_EQ(watch.Find()->rank, 2);
  EXPECT_EQ(watch.Find()->phase, "forward");
  EXPECT_NEAR(watch.Find()->percent, 66.7, 0.1);
  watch.Take(100, Shared(4));  // the first interval is still in the window, but no longer most of it
  EXPECT_FALSE(watch.Find().has_value());
}

TEST(StragglerWatchTest, SaysItInASentence) {
  EXPECT_EQ(DescribeStraggler({.rank = 3, .phase = "reading data", .percent = 33.6}),
            "rank 3 is slow: its steps take 34 % longer than the others', most of it in reading data");
}

TEST(StragglerWatchTest, AFifthIsTheLimit) {
  // A step of the other ranks takes 3 ms, and one phase of it 1 ms: a fifth more is 1.6 ms in that phase.
  for (const auto& [seconds, is_slow] : {std::pair(1.59e-3, false), std::pair(1.61e-3, true)}) {
    StragglerWatch watch(3);
    watch.Take(200, Shared(3, 0, 2, seconds));
    EXPECT_EQ(watch.Find().has_value(), is_slow) << seconds;
  }
}

TEST(StragglerWatchTest, RanksThatTakeTurnsAtBeingSlowestAreNotNamed) {
  StragglerWatch watch(3);
  for (int i = 0; i < 40; ++i) watch.Take(10, Shared(3, i % 3, 0, 9e-3));
  EXPECT_FALSE(watch.Find().has_value());
}

TEST(StragglerWatchTest, OfTwoSlowRanksTheSlowerIsNamed) {
  StragglerWatch watch(8);
  std::vector<double> all = Shared(8, 5, 2, 9e-3);
  all[6 * StragglerWatch::kShared + 2] = 8e-3;
  watch.Take(300, all);
  ASSERT_TRUE(watch.Find().has_value());
  EXPECT_EQ(watch.Find()->rank, 5);
  EXPECT_EQ(watch.Find()->phase, "backward");
}

TEST(StragglerWatchTest, ARankAloneIsNeverSlow) {
  StragglerWatch watch(1);
  watch.Take(500, Shared(1));
  EXPECT_FALSE(watch.Find().has_value());
}

TEST(RecordStragglerTest, ARankThatStaysSlowIsOneRecordAndTheListEnds) {
  std::vector<StragglerRecord> records;
  RecordStraggler({.rank = 1, .phase = "forward", .percent = 30}, 10, &records);
  RecordStraggler({.rank = 1, .phase = "backward", .percent = 40}, 20, &records);
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].straggler, (Straggler{.rank = 1, .phase = "backward", .percent = 40}));
  EXPECT_EQ(records[0].first_step, 10);
  EXPECT_EQ(records[0].last_step, 20);
  for (int64_t turn = 1; turn <= 2 * kStragglersRecordedMax; ++turn) {
    RecordStraggler({.rank = static_cast<int>(turn % 2 + 1), .phase = "forward", .percent = 50}, 20 + turn, &records);
  }
  ASSERT_EQ(std::ssize(records), kStragglersRecordedMax);
  EXPECT_EQ(records.back().straggler.percent, 50);
}

TEST(StragglerWatchTest, SharesMediansSoThatOneSlowStepDoesNotCount) {
  StragglerWatch watch(2);
  std::array<double, kStepPartCount> seconds = {};
  for (int step = 0; step < 1000; ++step) {
    seconds[static_cast<int>(StepPart::kDataWait)] = step == 990 ? 5 : 0.5;
    seconds[static_cast<int>(StepPart::kHostToDevice)] = 0.25;
    seconds[static_cast<int>(StepPart::kForward)] = step < 700 ? 8 : 2;  // more than a window ago
    seconds[static_cast<int>(StepPart::kBackward)] = 4;
    seconds[static_cast<int>(StepPart::kExposedExchange)] = 100;
    watch.AddStep(seconds);
  }
  std::array<double, StragglerWatch::kShared> shared;
  watch.Share(shared);
  EXPECT_EQ(shared[0], 0.75);
  EXPECT_EQ(shared[1], 2);
  EXPECT_EQ(shared[2], 4);
  watch.Share(shared);
  EXPECT_EQ(shared[0], 0) << "no step was added since";
}

}  // namespace
}  // namespace starring
