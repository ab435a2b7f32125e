#include "worker/train/run_history.h"

#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace starring {
namespace {

RunHistory Example() {
  return {.statistics = {0.1f, -2.5f, std::numeric_limits<float>::denorm_min()},
          .epoch_loss_sum = 1.0 / 3,
          .epoch_samples = int64_t{1} << 50,
          .seconds = 12.5,
          .epoch_seconds = 0.75,
          .epochs = {{.epoch = 4,
                      .train_loss = 0.1,
                      .test_loss = 0.2,
                      .test_accuracy = 0.3,
                      .seconds = 0.4,
                      .samples_per_second = 0.5}},
          .losses = {{.step = 7, .seconds = 0.7, .loss = 1e-300}, {.step = 8, .seconds = 0.8, .loss = 2.0 / 3}}};
}

// Every bit comes back: a worker that has just come must have the statistics that the others had.
TEST(RunHistoryTest, ComesBackBitForBit) {
  const RunHistory history = Example();
  const std::vector<double> values = ToValues(history);
  const absl::StatusOr<RunHistory> back = FromValues(values, 3);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->statistics, history.statistics);
  EXPECT_EQ(back->epoch_loss_sum, history.epoch_loss_sum);
  EXPECT_EQ(back->epoch_samples, history.epoch_samples);
  ASSERT_EQ(back->epochs.size(), 1u);
  EXPECT_EQ(back->epochs[0].epoch, 4);
  EXPECT_EQ(back->epochs[0].samples_per_second, 0.5);
  ASSERT_EQ(back->losses.size(), 2u);
  EXPECT_EQ(back->losses[1].step, 8);
  EXPECT_EQ(back->losses[1].loss, 2.0 / 3);
  EXPECT_EQ(ToValues(*back), values);
}

TEST(RunHistoryTest, RefusesWhatIsNone) {
  std::vector<double> values = ToValues(Example());
  EXPECT_EQ(FromValues(values, 2).status().code(), absl::StatusCode::kDataLoss);
  for (size_t length = 0; length < values.size(); ++length) {
    EXPECT_FALSE(FromValues(std::span(values).first(length), 3).ok()) << length;
  }
  for (const size_t count : {0, 1, 2}) {
    std::vector<double> other = values;
    for (const double number : {-1.0, 1e18, std::numeric_limits<double>::quiet_NaN()}) {
      other[count] = number;
      EXPECT_FALSE(FromValues(other, 3).ok()) << count << " " << number;
    }
  }
}

}  // namespace
}  // namespace starring
