// With which snapshot a generation begins, and what happens if one is lost.
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
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Kind = Order::Kind;

// Also in the first generation, of which no step has counted yet.
TEST(CoordinatorTest, AShardThatComesBackWithoutItsFilesEndsTheRun) {
  Play play({.shards = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(100'000);
  play.Kill(1001);
  play.Pass(milliseconds(1'200));
  ASSERT_TRUE(play.AddShard(1, 77).ok());
  EXPECT_EQ(play.generation(), 1);
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_EQ(play.coordinator().ended()->code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(play.coordinator().ended()->message()),
              AllOf(HasSubstr("come to step 100000"), HasSubstr("shard 0 has that of step 100000"),
                    HasSubstr("shard 1 has none"), HasSubstr("--resume")));
}

// A coordinator that was started again knows from no report what all shards had.
TEST(CoordinatorTest, SnapshotsThatOneShardAloneHasShowHowFarTheRunWas) {
  Play play({.shards = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(100'000);
  play.StartCoordinator();
  for (auto& [id, worker] : play.workers) worker.ready = true;
  play.shards.erase(1001);
  const ShardReport left = play.shards[1000];
  ASSERT_TRUE(play.coordinator().AddShard(1000, "server 0", left, play.now).ok());
  ASSERT_TRUE(play.AddShard(1, 77).ok());
  play.AddWorker(1);
  play.AddWorker(2);
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_EQ(play.coordinator().ended()->code(), absl::StatusCode::kDataLoss);
}

TEST(CoordinatorTest, BeginsAnewAndSaysSoBeforeAllShardsHaveASnapshotOnDisk) {
  Play play({.shards = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10, /*is_durable=*/false);
  play.workers[1].step = 13;
  play.Tell(1);
  play.Kill(1001);
  play.Pass(milliseconds(1'200));
  ASSERT_TRUE(play.AddShard(1, 77).ok());
  ASSERT_EQ(play.generation(), 2);
  EXPECT_EQ(play.last().first_step, 0);
  EXPECT_FALSE(play.history.back().second.from_snapshot);
  EXPECT_THAT(play.said, testing::Contains(HasSubstr("goes back from step 13 to step 0")));
}

// A disk has failed since the run began.
TEST(CoordinatorTest, ARunThatLosesMoreThanAMinuteOfStepsEnds) {
  for (const double step_seconds : {0.005, 0.01}) {
    Play play({.shards = 2});
    play.AddWorker(1);
    play.AddWorker(2);
    play.Snapshot(10'000, /*is_durable=*/false);
    play.workers[1].step = 10'000;
    play.workers[1].step_seconds = step_seconds;
    play.Tell(1);
    play.Kill(1001);
    play.Pass(milliseconds(1'200));
    ASSERT_TRUE(play.AddShard(1, 77).ok());
    if (step_seconds < 0.006) {
      EXPECT_EQ(play.generation(), 2);
      continue;
    }
    ASSERT_TRUE(play.coordinator().ended().has_value());
    EXPECT_EQ(play.coordinator().ended()->code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(play.coordinator().ended()->message()),
                AllOf(HasSubstr("come to step 10000"), HasSubstr("--resume")));
  }
}

// Its log says only that the run has begun.
TEST(CoordinatorTest, ACoordinatorThatIsStartedAgainHearsFromWorkersHowFarTheRunWas) {
  Play play({});
  play.AddWorker(1);
  play.AddWorker(2);
  play.workers[1].step = 10'000;
  play.workers[1].step_seconds = 0.01;
  play.StartCoordinator();
  play.shards.clear();
  ASSERT_TRUE(play.AddShard(0, 2000).ok());
  play.AddWorker(1);
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_EQ(play.coordinator().ended()->code(), absl::StatusCode::kDataLoss);
}

// The run computes the lost steps again, but they are in memory alone when the shard with that disk dies once more.
TEST(CoordinatorTest, ARunWithADiskThatFailsDoesNotGoInCircles) {
  Play play({.shards = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  for (uint64_t round = 0; round < 6 && !play.coordinator().ended().has_value(); ++round) {
    play.AddWorker(10 + round);  // a planned change, after which all is well
    play.Step(/*is_durable=*/false);
    EXPECT_EQ(play.last().first_step, play.newest_step);
    play.Kill(play.shards.rbegin()->first);
    play.Pass(milliseconds(1'200));
    play.RestartShard(1);
  }
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_EQ(play.coordinator().ended()->code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(play.coordinator().ended()->message()),
              AllOf(HasSubstr("3 generations have not brought the run further"), HasSubstr("begin at step 0"),
                    HasSubstr("server 1 is gone")));
  EXPECT_EQ(play.newest_step, 30);
}

// A loss by the disk counts as a strike until the disk works again. A worker that dies counts until the run has come
// further.
TEST(CoordinatorTest, DeadWorkersEndNoRunThatComesFurtherWithADiskThatFails) {
  Play play({.shards = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  play.AddWorker(10);
  play.Step(/*is_durable=*/false);
  play.Kill(play.shards.rbegin()->first);
  play.Pass(milliseconds(1'200));
  play.RestartShard(1);
  for (uint64_t id = 11; id < 16; ++id) {
    play.AddWorker(id);
    play.Step(/*is_durable=*/false);
    ASSERT_EQ(play.last().first_step, play.newest_step);
    play.Kill(id);  // before the next snapshot
    play.Pass(milliseconds(1'200));
    ASSERT_EQ(play.last().first_step, play.newest_step);
    ASSERT_FALSE(play.coordinator().ended().has_value()) << *play.coordinator().ended();
  }
}

TEST(CoordinatorTest, ADiskThatWritesNothingIsSaid) {
  Play play({.shards = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  play.Snapshot(20);
  play.Pass(milliseconds(61'000));
  const auto complaint =
      testing::Contains(HasSubstr("no snapshot after step 20 is on all disks: look at that of "
                                  "server 1,"));
  EXPECT_THAT(play.said, testing::Not(complaint));
  for (const int64_t step : {30, 40}) {
    play.shards[1000].durable.push_back(step);
    for (auto& [id, shard] : play.shards) shard.held.push_back(step);
  }
  play.Pass(milliseconds(61'000));
  EXPECT_THAT(play.said, complaint);
}

// The log was lost, or moved away for a new run of the same name.
TEST(CoordinatorTest, SnapshotsOfARunThatTheLogDoesNotHaveAreNotUsed) {
  Play play({});
  play.shards[1000].held = play.shards[1000].durable = {10};
  play.Tell(1000);
  play.AddWorker(1);
  play.AddWorker(2);
  ASSERT_EQ(play.generation(), 1);
  EXPECT_EQ(play.last().first_step, 0);
  EXPECT_FALSE(play.history.back().second.from_snapshot);
  EXPECT_EQ(play.OrdersTo(1000, Kind::kKeep), 0);
}

TEST(CoordinatorTest, AWorkerThatWouldBeginElsewhereIsRefusedUntilThereIsASnapshot) {
  Play play({.first_step = 100});
  play.workers[1].first_step = 100;
  play.AddWorker(1);
  play.AddWorker(2);  // without --resume
  EXPECT_EQ(play.generation(), 0);
  ASSERT_THAT(play.KindsTo(2), ElementsAre(Kind::kEnd));
  const absl::Status why = play.history.back().second.end;
  EXPECT_EQ(why.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(why.message()),
              AllOf(HasSubstr("began at step 100"), HasSubstr("would begin at step 0: give --resume")));
  play.workers.erase(2);
  play.workers[3].first_step = 100;
  play.AddWorker(3);
  ASSERT_EQ(play.generation(), 1);
  EXPECT_THAT(play.last().workers, ElementsAre(1, 3));
  // A process that was started again finds a newer checkpoint.
  play.workers[4].first_step = 150;
  play.AddWorker(4);
  EXPECT_THAT(play.KindsTo(4), ElementsAre(Kind::kReach));
  play.Snapshot(110);
  for (const uint64_t id : {1, 3}) {
    play.workers[id].ready = true;
    play.Tell(id);
  }
  ASSERT_EQ(play.generation(), 2);
  EXPECT_THAT(play.last().workers, ElementsAre(1, 3, 4));
  EXPECT_EQ(play.last().first_step, 110);
  EXPECT_TRUE(play.history.back().second.from_snapshot);
}

// It came in by a snapshot that was in memory alone.
TEST(CoordinatorTest, AWorkerThatWouldBeginElsewhereDoesNotBeginAnew) {
  Play play({.shards = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  play.workers[3].first_step = 50;
  play.AddWorker(3);
  play.Snapshot(10, /*is_durable=*/false);
  for (const uint64_t id : {1, 2}) {
    play.workers[id].ready = true;
    play.Tell(id);
  }
  ASSERT_EQ(play.generation(), 2);
  EXPECT_THAT(play.last().workers, ElementsAre(1, 2, 3));
  play.Kill(1001);
  play.Pass(milliseconds(1'200));
  ASSERT_TRUE(play.AddShard(1, 77).ok());
  ASSERT_EQ(play.generation(), 3);
  EXPECT_EQ(play.last().first_step, 0);
  EXPECT_THAT(play.last().workers, ElementsAre(1, 2));
  EXPECT_EQ(play.KindsTo(3).back(), Kind::kEnd);
}

// It is of a run that began earlier in the same folder.
TEST(CoordinatorTest, ASnapshotOfAStepThatTheRunDoesNotHaveIsNotUsed) {
  Play play({.first_step = 100});
  play.shards[1000].held = play.shards[1000].durable = {90, 100};
  play.Tell(1000);
  for (const uint64_t id : {1, 2}) {
    play.workers[id].first_step = 100;
    play.AddWorker(id);
  }
  play.Kill(2);
  play.Pass(milliseconds(1'200));
  ASSERT_EQ(play.generation(), 2);
  EXPECT_EQ(play.last().first_step, 100);
  EXPECT_FALSE(play.history.back().second.from_snapshot);
}

TEST(CoordinatorTest, ALostLogOfSnapshotsIsSaid) {
  Play play({});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  play.Kill(2);
  play.Pass(milliseconds(1'200));
  ASSERT_EQ(play.counted_end(), 10);
  play.shards[1000].held = {};
  play.workers[1].ready = true;
  play.workers[1].trouble = "x";
  play.Tell(1000);
  play.Tell(1);
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_THAT(std::string(play.coordinator().ended()->message()),
              AllOf(HasSubstr("come to step 10, and no snapshot is on all"), HasSubstr("--state_dir")));
}

// A generation may begin from memory, before the files are written.
TEST(CoordinatorTest, GoesBackFurtherWhenASnapshotIsLostThatHadCounted) {
  Play play({});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  play.Snapshot(20);
  play.Kill(2);
  play.Pass(milliseconds(1'200));
  ASSERT_EQ(play.counted_end(), 20);
  play.shards[1000].held = play.shards[1000].durable = {10};
  play.Tell(1000);
  play.workers[1].ready = true;
  play.workers[1].trouble = "server: broken pipe";
  play.Tell(1);
  ASSERT_EQ(play.generation(), 3);
  EXPECT_EQ(play.last().first_step, 10);
  EXPECT_EQ(play.counted_end(), 10);
  EXPECT_THAT(play.said, testing::Contains(HasSubstr("goes back from step 20 to step 10")));
  play.Snapshot(30);
  play.shards[1000].finished = true;
  play.Tell(1000);
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_EQ(*play.coordinator().ended(), absl::OkStatus()) << "the log proves that all steps counted once";
}

}  // namespace
}  // namespace starring
