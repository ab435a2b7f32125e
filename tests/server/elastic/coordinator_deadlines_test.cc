// When the coordinator gives a member, or the run, up.
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
using Kind = Order::Kind;

TEST(CoordinatorTest, ASilentWorkerIsGivenUpAndMayComeBack) {
  Play play({});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  play.silent.insert(2);
  play.Pass(milliseconds(4'900));
  EXPECT_EQ(play.generation(), 1);
  play.Pass(milliseconds(400));
  EXPECT_EQ(play.generation(), 2);
  EXPECT_THAT(play.KindsTo(2), testing::Contains(Kind::kGivenUp));
  // It wakes up, finds its lanes cut, and attends again.
  play.silent.clear();
  play.AddWorker(2);
  play.Snapshot(20);
  EXPECT_EQ(play.generation(), 2) << "the others go on to a snapshot first";
  EXPECT_EQ(play.KindsTo(1).back(), Kind::kStop);
  play.workers[1].ready = true;
  play.Tell(1);
  ASSERT_EQ(play.generation(), 3);
  EXPECT_EQ(play.last().first_step, 20);
  EXPECT_THAT(play.last().workers, ElementsAre(1, 2));
}

TEST(CoordinatorTest, AStuckWorkerIsGivenUpAndOneThatWaitsForOthersIsNot) {
  Play play({});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  for (const uint64_t id : {1, 2}) {
    play.stuck.insert(id);
    play.workers[id].seconds_per_leaf = 0.1;
  }
  play.workers[1].computes = false;  // it waits for worker 2
  play.Pass(milliseconds(9'500));
  EXPECT_EQ(play.generation(), 1);
  play.Pass(milliseconds(1'000));
  ASSERT_EQ(play.generation(), 2);
  EXPECT_THAT(play.coordinator().Describe().cause, HasSubstr("worker 2 is stuck"));
  // 20 leaves may take longer than that.
  Play slow({.first_workers = 1});
  slow.AddWorker(1);
  slow.stuck.insert(1);
  slow.workers[1].seconds_per_leaf = 1;
  slow.Pass(milliseconds(19'000));
  EXPECT_EQ(slow.generation(), 1);
  slow.Pass(milliseconds(2'000));
  EXPECT_THAT(slow.coordinator().Describe().cause, HasSubstr("worker 1 is stuck"));
}

// Its exchange was cut, and it does not come back from it.
TEST(CoordinatorTest, AWorkerThatHangsInAWaitHoldsUpAChangeForAsLong) {
  Play play({});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  play.hung.insert(2);
  play.workers[2].computes = false;
  play.Tell(2);
  play.workers[1].trouble = "no answer";
  play.workers[1].ready = true;
  play.Tell(1);
  play.Pass(milliseconds(9'500));
  EXPECT_EQ(play.generation(), 1);
  play.Pass(milliseconds(1'000));
  ASSERT_EQ(play.generation(), 2);
  EXPECT_THAT(play.last().workers, ElementsAre(1));
}

// Nobody waits for it, so that no shard misses it.
TEST(CoordinatorTest, AWorkerThatHangsAloneIsGivenUpAndOneThatWaitsForItsDiskIsNot) {
  Play play({.first_workers = 1});
  play.AddWorker(1);
  play.Snapshot(10);
  play.workers[1].computes = false;  // and its count grows
  play.Pass(milliseconds(120'000));
  EXPECT_FALSE(play.coordinator().Describe().changing);
  play.hung.insert(1);
  play.Pass(milliseconds(599'500));
  EXPECT_FALSE(play.coordinator().Describe().changing);
  play.Pass(milliseconds(1'000));
  EXPECT_TRUE(play.coordinator().Describe().changing);
  EXPECT_THAT(play.coordinator().Describe().cause, HasSubstr("worker 1 is stuck: it has come no further"));
}

// It hears that it was given up, and attends again before the shard has prepared, while its step still does not end.
TEST(CoordinatorTest, NobodyWaitsForAStuckWorkerThatAttendsAgain) {
  Play play({});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  play.hung.insert(2);
  play.unreached.insert(kShardIds);
  play.Pass(milliseconds(10'500));
  EXPECT_EQ(play.generation(), 1);
  EXPECT_TRUE(play.coordinator().AddWorker(2, "worker 2", play.workers[2], play.now).ok());
  play.unreached.clear();
  play.Pass(milliseconds(2'000));
  ASSERT_EQ(play.generation(), 2);
  EXPECT_THAT(play.last().workers, ElementsAre(1));
}

TEST(CoordinatorTest, EndsWhenAShardDoesNotComeBack) {
  Play play({.shards = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Kill(1001);
  play.Pass(milliseconds(62'000));
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_THAT(std::string(play.coordinator().ended()->message()),
              AllOf(HasSubstr("shard 1 of 2 has not come"), HasSubstr("server 1 is gone"), HasSubstr("--resume")));
}

TEST(CoordinatorTest, TheFirstWorkersAndShardsHaveTheTimeOfTheStart) {
  Play play(
      {.shards = 2, .first_workers = 2, .start_deadline = milliseconds(600'000), .waited = milliseconds(100'000)});
  play.AddWorker(1);
  play.Kill(1001);
  play.Pass(milliseconds(200'000));
  play.RestartShard(1);
  play.Pass(milliseconds(200'000));
  EXPECT_FALSE(play.coordinator().ended().has_value());
  play.AddWorker(2);
  ASSERT_EQ(play.generation(), 1);
  play.Kill(play.shards.rbegin()->first);  // a run that has begun waits for less
  play.Pass(milliseconds(62'000));
  EXPECT_TRUE(play.coordinator().ended().has_value());
}

TEST(CoordinatorTest, EndsWhenTheFirstWorkersDoNotComeInTimeFromTheStartOn) {
  Play play({.first_workers = 2, .start_deadline = milliseconds(600'000), .waited = milliseconds(590'000)});
  play.AddWorker(1);
  play.Pass(milliseconds(9'500));
  EXPECT_FALSE(play.coordinator().ended().has_value());
  play.Pass(milliseconds(1'000));
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_THAT(std::string(play.coordinator().ended()->message()),
              HasSubstr("1 of at least 2 workers have come within 600.0 s"));
}

TEST(CoordinatorTest, TooFewWorkersAreSaidAndEndTheRunAtLast) {
  Play play({.first_workers = 2, .min_workers = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Kill(2);
  play.Pass(milliseconds(15'000));
  EXPECT_THAT(play.said, testing::Contains(HasSubstr("1 of at least 2 workers")));
  EXPECT_FALSE(play.coordinator().ended().has_value());
  play.Pass(milliseconds(60'000));
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_EQ(play.coordinator().ended()->code(), absl::StatusCode::kUnavailable);
}

TEST(CoordinatorTest, TooFewWorkersSaveBeforeTheRunEnds) {
  Play play({.first_workers = 2, .min_workers = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  play.Kill(2);
  play.Pass(milliseconds(60'000));
  ASSERT_EQ(play.generation(), 1);
  play.Pass(milliseconds(2'000));
  ASSERT_EQ(play.generation(), 2);
  EXPECT_EQ(play.last().first_step, 10);
  EXPECT_TRUE(play.history.back().second.ends_run);
  EXPECT_THAT(play.said, testing::Contains(HasSubstr("saves before it ends: 1 of at least 2 workers")));
  EXPECT_FALSE(play.coordinator().ended().has_value());
  play.shards[1000].finished = true;
  play.Tell(1000);
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_EQ(play.coordinator().ended()->code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(play.coordinator().ended()->message()),
              AllOf(HasSubstr("1 of at least 2 workers"), HasSubstr("worker 2 is gone"),
                    HasSubstr("--resume from the last checkpoint, or all with the same --state_dir")));
  // The second of these ways.
  const ShardReport left = play.shards[1000];
  play.StartCoordinator();
  play.shards.clear();
  play.shards[2000] = {.shard = 0, .address = "again", .held = left.durable, .durable = left.durable};
  ASSERT_TRUE(play.coordinator().AddShard(2000, "server 0", play.shards[2000], play.now).ok());
  play.Tell(2000);
  play.AddWorker(3);
  play.AddWorker(4);
  ASSERT_EQ(play.generation(), 3);
  EXPECT_EQ(play.last().first_step, 10);
  EXPECT_FALSE(play.history.back().second.ends_run);
}

TEST(CoordinatorTest, TooFewWorkersThatHangWhileTheySaveEndTheRunToo) {
  Play play({.first_workers = 2, .min_workers = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  play.Kill(2);
  play.Pass(milliseconds(62'000));
  ASSERT_TRUE(play.history.back().second.ends_run);
  play.workers[1].computes = false;
  play.hung.insert(1);
  play.Pass(milliseconds(602'000));
  EXPECT_FALSE(play.coordinator().ended().has_value()) << "another one may come and save";
  play.Pass(milliseconds(60'000));
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_EQ(play.coordinator().ended()->code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(play.coordinator().ended()->message()),
              AllOf(HasSubstr("0 of at least 1 workers"), HasSubstr("worker 1 is stuck")));
}

// A worker died during the evaluation after the last step.
TEST(CoordinatorTest, TooFewWorkersSaveAlsoAfterErrors) {
  Play play({.first_workers = 2, .min_workers = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  for (int i = 0; i < 3; ++i) {  // the third would be the last one
    play.workers[2].ready = true;
    play.workers[2].trouble = "no memory";
    play.Tell(2);
  }
  play.Kill(2);
  play.Pass(milliseconds(62'000));
  EXPECT_FALSE(play.coordinator().ended().has_value());
  EXPECT_TRUE(play.history.back().second.ends_run);
}

TEST(CoordinatorTest, TooFewWorkersAreEnoughIfAllStepsAreDone) {
  Play play({.first_workers = 2, .min_workers = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(1000);
  play.Kill(2);
  play.Pass(milliseconds(62'000));
  ASSERT_EQ(play.generation(), 2);
  play.shards[1000].finished = true;
  play.Tell(1000);
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_EQ(*play.coordinator().ended(), absl::OkStatus());
}

TEST(CoordinatorTest, ACoordinatorThatWasStoppedBlamesNobody) {
  Play play({});
  play.AddWorker(1);
  play.AddWorker(2);
  play.now += std::chrono::seconds(30);
  play.coordinator().Tick(play.now);
  play.Pass(milliseconds(1'000));
  EXPECT_EQ(play.generation(), 1);
  EXPECT_THAT(play.said, testing::SizeIs(1));
}

TEST(CoordinatorTest, ACoordinatorThatWasStoppedBlamesNobodyForTheirSilence) {
  Play play({.first_workers = 1, .times = {.gone = milliseconds(60'000)}});
  play.AddWorker(1);
  play.now += std::chrono::seconds(10);
  play.coordinator().Tick(play.now);
  play.Pass(milliseconds(1'000));
  EXPECT_EQ(play.generation(), 1);
}

}  // namespace
}  // namespace starring
