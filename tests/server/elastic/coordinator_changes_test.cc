// Changes of generation: the steps that count, the members that get orders, and the reports that are believed.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/elastic/coordinator.h"
#include "tests/server/elastic/played_members.h"

namespace starring {
namespace {

using std::chrono::milliseconds;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using Kind = Order::Kind;

// All workers have stopped as they were told to.
void Stop(Play& play) {
  for (const uint64_t id : play.last().workers) {
    play.workers[id].ready = true;
    play.Tell(id);
  }
}

// A loss is logged and counted once.
TEST(CoordinatorTest, ARunThatHasGoneBackLosesNothingByItsNextChanges) {
  Play play({});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  play.Snapshot(20);
  play.shards[1000].held = play.shards[1000].durable = {10};
  play.Tell(1000);
  play.Trouble(1, "server: broken pipe");
  ASSERT_EQ(play.generation(), 2);
  ASSERT_EQ(play.last().first_step, 10);
  int64_t number = 2;
  for (const int64_t step : {12, 14, 16, 18}) {
    play.AddWorker(static_cast<uint64_t>(step));
    play.Snapshot(step);
    Stop(play);
    ASSERT_EQ(play.generation(), ++number) << step;
    EXPECT_EQ(play.last().first_step, step);
  }
  const auto says_back = [](const std::string& line) { return line.starts_with("goes back"); };
  EXPECT_EQ(std::ranges::count_if(play.said, says_back), 1);
}

TEST(CoordinatorTest, PlannedChangesAreNoStrikes) {
  Play play({});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  for (uint64_t id = 3; id < 8; ++id) {
    play.AddWorker(id);
    Stop(play);  // before there is a further snapshot
  }
  EXPECT_FALSE(play.coordinator().ended().has_value());
  EXPECT_EQ(play.generation(), 6);
}

// Its order to serve was lost, and it tells of the generation before.
class StaleReportTest : public testing::Test {
 protected:
  StaleReportTest() {
    play_.AddWorker(1);
    play_.AddWorker(2);
    play_.Snapshot(10);
    play_.Snapshot(14, /*is_durable=*/false);
    play_.Pass(milliseconds(100));
    play_.unreached = {1000, 1001};
    for (auto& [id, shard] : play_.shards) shard.prepared = 2;
    // One shard does not have step 14, so that the other is about to drop it.
    play_.shards[1001].held = {10};
    play_.Tell(1001);
    play_.Trouble(1, "server: broken pipe");
    for (const uint64_t id : {1000, 1001}) play_.Tell(id);
    for (const uint64_t id : {1, 2}) {
      play_.workers[id].ready = true;
      play_.Tell(id);
    }
    EXPECT_EQ(play_.generation(), 2);
    EXPECT_EQ(play_.last().first_step, 10);
    EXPECT_EQ(play_.shards[1000].generation, 1);
  }
  Play play_{RunSetup{.shards = 2}};
};

TEST_F(StaleReportTest, WhatAShardSaysOfTheGenerationBeforeEndsNothing) {
  play_.shards[1000].trouble = "rank 1 has not contributed";
  play_.Tell(1000);
  EXPECT_FALSE(play_.coordinator().Describe().changing);
  for (auto& [id, shard] : play_.shards) shard.finished = true;
  for (const uint64_t id : {1000, 1001}) play_.Tell(id);
  EXPECT_FALSE(play_.coordinator().ended().has_value());
  EXPECT_EQ(play_.generation(), 2);
}

TEST_F(StaleReportTest, ASnapshotThatIsAboutToBeDroppedIsNotKept) {
  play_.history.clear();
  for (auto& [id, shard] : play_.shards) shard.held = shard.durable = {10, 14};
  for (const uint64_t id : {1000, 1001}) play_.Tell(id);
  EXPECT_THAT(play_.KindsTo(1000), Not(Contains(Kind::kKeep)));
  // As one shard after the other begins to serve.
  play_.unreached = {1001};
  play_.Pass(milliseconds(1'200));
  ASSERT_EQ(play_.shards[1000].generation, 2);
  EXPECT_THAT(play_.shards[1000].durable, ElementsAre(10));
  EXPECT_THAT(play_.KindsTo(1000), Not(Contains(Kind::kKeep)));
}

// A worker may wait for a shard that is gone, and would until its deadline.
TEST(CoordinatorTest, WorkersAreToldAtOnceThatTheirGenerationIsOver) {
  Play play({.shards = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  play.Pass(milliseconds(100));
  play.hung = {1, 2};
  play.shards[1001].trouble = "rank 1 has not contributed";
  play.Tell(1001);
  for (const uint64_t id : {1, 2}) {
    ASSERT_EQ(play.OrdersTo(id, Kind::kCut), 1);
    EXPECT_EQ(play.KindsTo(id).back(), Kind::kCut);
  }
}

}  // namespace
}  // namespace starring
