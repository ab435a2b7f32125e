#include "server/elastic/write_choice.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using testing::ElementsAre;
using Disk = WriteChoice::Disk;

// A shard whose disk needs some time for a snapshot, in units of that between two snapshots.
class Shard {
 public:
  explicit Shard(double write_time) : write_time_(write_time) {}

  void Take(int64_t number, int64_t step) {
    const auto now = static_cast<double>(number);
    if (!choice_.Wants(step, now < busy_until_ ? Disk::kBusy : Disk::kIdle)) return;
    busy_until_ = now + write_time_;
    written_.insert(step);
  }
  bool has_written(int64_t step) const { return written_.contains(step); }
  std::vector<int64_t> WrittenFrom(int64_t step) const { return {written_.lower_bound(step), written_.end()}; }

 private:
  const double write_time_;
  WriteChoice choice_;
  double busy_until_ = 0;
  std::set<int64_t> written_;
};

TEST(WriteChoiceTest, AFastDiskWritesAll) {
  Shard shard(0.9);
  for (int64_t step = 1; step <= 6; ++step) shard.Take(step, step);
  EXPECT_THAT(shard.WrittenFrom(1), ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST(WriteChoiceTest, ASlowDiskWritesEverySecondFourthOrEighth) {
  Shard shard(4.5);
  for (int64_t step = 1; step <= 128; ++step) shard.Take(step, step);
  EXPECT_THAT(shard.WrittenFrom(100), ElementsAre(104, 112, 120, 128));
}

TEST(WriteChoiceTest, ShardsOfAnySpeedMeet) {
  std::vector<Shard> shards;
  for (const double write_time : {0.4, 1.5, 2.5, 4.5, 6.5}) shards.emplace_back(write_time);
  int common_count = 0;
  for (int64_t number = 1; number <= 600; ++number) {
    const int64_t step = 3 * number;
    for (Shard& shard : shards) shard.Take(number, step);
    if (number <= 200) continue;
    common_count += std::ranges::all_of(shards, [&](const Shard& shard) { return shard.has_written(step); });
  }
  EXPECT_EQ(common_count, 400 / 8);
}

TEST(WriteChoiceTest, ADiskThatWasBusyForLongIsSoonAsBefore) {
  WriteChoice choice;
  EXPECT_TRUE(choice.Wants(1, Disk::kIdle));
  for (int64_t step = 2; step <= 1001; ++step) EXPECT_FALSE(choice.Wants(step, Disk::kBusy));
  EXPECT_TRUE(choice.Wants(1002, Disk::kIdle));
  EXPECT_TRUE(choice.Wants(1003, Disk::kIdle));
  EXPECT_TRUE(choice.Wants(1004, Disk::kIdle));
}

}  // namespace
}  // namespace starring
