// The coordinator with members that are played, and a clock that is set: how a run begins, changes and ends.
#include "server/elastic/coordinator.h"

#include <signal.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/job/leaf_shares.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/elastic/played_members.h"

namespace starring {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Kind = Order::Kind;

TEST(CoordinatorTest, BeginsWithAllFirstWorkersAndShards) {
  Play play({.shards = 2, .first_workers = 3});
  play.AddWorker(1);
  play.AddWorker(2);
  EXPECT_EQ(play.generation(), 0);
  play.AddWorker(3);
  ASSERT_EQ(play.generation(), 1);
  EXPECT_THAT(play.last().workers, ElementsAre(1, 2, 3));
  EXPECT_EQ(play.last().first_step, 0);
  EXPECT_EQ(play.last().leaf_owners, DealLeavesEvenly(8, 3));
  const Order& order = play.history.back().second;
  EXPECT_EQ(order.kind, Kind::kTrain);
  EXPECT_FALSE(order.from_snapshot);
  EXPECT_THAT(order.shards, ElementsAre("host:1000", "host:1001"));
}

TEST(CoordinatorTest, AWorkerThatDiesCostsAReturnToTheNewestSnapshotOfAllShards) {
  Play play({.shards = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  play.Snapshot(20);
  play.shards[1000].held.push_back(30);  // the other shard is a step behind
  play.Kill(1);
  play.Pass(milliseconds(900));
  EXPECT_EQ(play.generation(), 1);  // the connection may come back
  play.Pass(milliseconds(300));
  ASSERT_EQ(play.generation(), 2);
  EXPECT_EQ(play.last().first_step, 20);
  EXPECT_THAT(play.last().workers, ElementsAre(2));
  EXPECT_EQ(play.counted_end(), 20);
  EXPECT_THAT(play.coordinator().Describe().cause, HasSubstr("worker 1 is gone"));
  EXPECT_TRUE(play.history.back().second.from_snapshot);
}

TEST(CoordinatorTest, TheLogSaysWhatEachShardHasCounted) {
  Play play({.shards = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  for (auto& [id, shard] : play.shards) shard.counted = {{10, 80}};
  play.shards[1001].counted[10] = 79;
  play.Kill(1);
  play.Pass(milliseconds(1'200));
  ASSERT_EQ(play.generation(), 2);
  EXPECT_THAT(play.LogText(), HasSubstr("shards: [80, 79]"));
  EXPECT_THAT(std::string(CheckExactlyOnce(play.Log()).message()),
              HasSubstr("shard 1 counted 79 leaves in steps 0 to 10, which have 80"));
}

TEST(CoordinatorTest, AShardThatDiesIsWaitedForAndComesBackWithItsFiles) {
  Play play({.shards = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  play.Kill(1001);
  play.Pass(milliseconds(3'000));
  EXPECT_EQ(play.generation(), 1);
  EXPECT_THAT(play.coordinator().Describe().cause, HasSubstr("server 1 is gone"));
  play.shards[1000].held = {10, 20};
  play.Tell(1000);
  play.shards[77] = {.shard = 1, .address = "host:77", .held = {10}, .durable = {10}};
  ASSERT_TRUE(play.coordinator().AddShard(77, "server 1", play.shards[77], play.now).ok());
  play.Tell(77);
  ASSERT_EQ(play.generation(), 2);
  EXPECT_EQ(play.last().first_step, 10);
  EXPECT_TRUE(play.history.back().second.from_snapshot);
}

TEST(CoordinatorTest, AReplacedShardIsNoLongerOne) {
  Play play({.shards = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  play.silent.insert(1001);
  const ShardReport old = play.shards[1001];
  EXPECT_EQ(play.AddShard(1, 77).code(), absl::StatusCode::kAlreadyExists);
  play.Pass(milliseconds(5'300));
  play.shards[77] = {.shard = 1, .address = "host:77", .held = {10}, .durable = {10}};
  ASSERT_TRUE(play.coordinator().AddShard(77, "server 1", play.shards[77], play.now).ok());
  play.Tell(77);
  ASSERT_EQ(play.generation(), 2);
  EXPECT_EQ(play.last().first_step, 10);
  EXPECT_THAT(play.history.back().second.shards, ElementsAre("host:1000", "host:77"));
  // The one that wakes up is refused.
  EXPECT_EQ(play.coordinator().AddShard(1001, "server 1, again", old, play.now).code(),
            absl::StatusCode::kAlreadyExists);
}

TEST(CoordinatorTest, AnExchangeThatFailsBeginsAGeneration) {
  Play play({});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  play.workers[2].ready = true;
  play.workers[2].trouble = "server host:1000: broken pipe";
  play.Tell(2);
  EXPECT_EQ(play.generation(), 2);
  EXPECT_THAT(play.coordinator().Describe().cause, HasSubstr("broken pipe"));
  play.shards[1000].trouble = "rank 1 has not contributed bucket 0";
  play.Tell(1000);
  EXPECT_EQ(play.generation(), 3);
}

TEST(CoordinatorTest, AnErrorThatComesBackInEachGenerationEndsTheRun) {
  Play play({});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  for (int i = 0; i < 10 && !play.coordinator().ended().has_value(); ++i) {
    play.Trouble(2, absl::StrCat("the exchange failed, attempt ", i));
  }
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_EQ(play.generation(), 4);  // at step 0, and three times at step 10
  EXPECT_THAT(std::string(play.coordinator().ended()->message()),
              AllOf(HasSubstr("attempt 1"), HasSubstr("attempt 2"), HasSubstr("attempt 3")));
}

// A worker that joins has the others stop at a snapshot. An error that keeps them from it is one all the same.
TEST(CoordinatorTest, AnErrorThatComesBackEndsTheRunAlsoIfWorkersJoin) {
  Play play({});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  for (uint64_t i = 0; i < 5 && !play.coordinator().ended().has_value(); ++i) {
    play.AddWorker(10 + i);
    EXPECT_EQ(play.KindsTo(1).back(), Kind::kStop);
    play.Trouble(2, absl::StrCat("the exchange failed, attempt ", i));
  }
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_EQ(play.generation(), 4);
  EXPECT_THAT(std::string(play.coordinator().ended()->message()),
              AllOf(HasSubstr("attempt 1"), HasSubstr("attempt 2"), HasSubstr("attempt 3")));
}

TEST(CoordinatorTest, ACoordinatorThatIsStartedAgainBeginsANewGeneration) {
  Play play({.shards = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  play.StartCoordinator();
  play.obedient = true;
  for (auto& [id, worker] : play.workers) worker.ready = true;
  // Shard 0 is a new process and has its files; shard 1 lives, and has more.
  play.shards.clear();
  const auto add = [&](int shard, uint64_t id, std::vector<int64_t> held) {
    play.shards[id] = {.shard = shard, .address = absl::StrCat("host:", id), .held = held, .durable = held};
    ASSERT_TRUE(play.coordinator().AddShard(id, absl::StrCat("server ", shard), play.shards[id], play.now).ok());
    play.Tell(id);
  };
  add(0, 2000, {10});
  add(1, 1001, {10, 20});
  play.AddWorker(1);
  EXPECT_EQ(play.generation(), 1) << "the other worker is about to come";
  play.AddWorker(2);
  ASSERT_EQ(play.generation(), 2);
  EXPECT_EQ(play.last().first_step, 10);
}

TEST(CoordinatorTest, WhoComesAfterTheEndHearsOfIt) {
  Play play({});
  play.AddWorker(1);
  play.coordinator().EndRun(play.now);  // before its first step
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_FALSE(play.coordinator().ended()->ok());
  EXPECT_TRUE(play.AddShard(0, 1001).ok());
  play.AddWorker(2);
  play.AddWorker(3);
  for (const uint64_t id : {1001, 2, 3}) {
    ASSERT_EQ(play.KindsTo(id).back(), Kind::kEnd) << id;
  }
  EXPECT_EQ(play.history.back().second.end, *play.coordinator().ended());
}

// While it lives, no file of this process gets longer.
class NoSpace {
 public:
  NoSpace() : handler_(signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit none = {.rlim_cur = 0, .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  }
  ~NoSpace() {
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before_), 0);
    signal(SIGXFSZ, handler_);
  }
  NoSpace(const NoSpace&) = delete;
  NoSpace& operator=(const NoSpace&) = delete;

 private:
  rlimit before_ = {};
  void (*const handler_)(int);
};

// At each of its entries: that a change has begun, that a generation has, that the run has ended.
TEST(CoordinatorTest, ALogWhoseDiskIsFullIsTriedAgain) {
  Play play({});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  play.AddWorker(3);
  {
    const NoSpace no_space;
    play.Trouble(2, "server: broken pipe");
    play.Pass(milliseconds(3'000));
    EXPECT_THAT(play.said, testing::Contains(AllOf(HasSubstr("no space left"), HasSubstr("trying again for 60.0 s"))));
    EXPECT_THAT(play.KindsTo(1), testing::Not(testing::Contains(Kind::kCut)))
        << "what is not in the log did not happen";
  }
  play.unreached = {1000};  // it has not prepared before the disk is full again
  play.Pass(milliseconds(1'200));
  EXPECT_EQ(play.generation(), 1);
  play.unreached.clear();
  {
    const NoSpace no_space;
    play.Pass(milliseconds(3'000));
    EXPECT_EQ(play.generation(), 1);
  }
  play.Pass(milliseconds(1'200));
  EXPECT_EQ(play.generation(), 2);
  {
    const NoSpace no_space;
    play.Finish();
    play.Pass(milliseconds(3'000));
    EXPECT_FALSE(play.coordinator().ended().has_value());
  }
  play.Pass(milliseconds(1'200));
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_EQ(*play.coordinator().ended(), absl::OkStatus());
}

TEST(CoordinatorTest, ALogWhoseDiskStaysFullEndsTheRun) {
  Play play({});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  const NoSpace no_space;
  play.Trouble(2, "server: broken pipe");
  play.Pass(milliseconds(62'000));
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_EQ(play.coordinator().ended()->code(), absl::StatusCode::kResourceExhausted);
}

TEST(CoordinatorTest, AProcessIsOneMemberAsLongAsItLives) {
  Play play({.shards = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  play.shards[1001].shard = 0;
  play.Tell(1001);
  play.coordinator().OnShard(1, play.shards[1000], play.now);
  play.coordinator().OnWorker(1000, {.failure = absl::InternalError("no shard's")}, play.now);
  EXPECT_FALSE(play.coordinator().ended().has_value());
  play.coordinator().OnDisconnect(1001, play.now);
  EXPECT_EQ(play.coordinator().AddShard(1001, "server 0", play.shards[1001], play.now).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(play.coordinator().AddWorker(1001, "worker", {}, play.now).code(), absl::StatusCode::kAlreadyExists);
  play.Kill(1001);
  play.Pass(milliseconds(1'200));
  EXPECT_THAT(play.coordinator().Describe().missing_shards, ElementsAre(1));
  ASSERT_TRUE(play.AddShard(1, 77).ok());
  EXPECT_EQ(play.generation(), 2);
}

TEST(CoordinatorTest, EndsWhenAllShardsHaveFinished) {
  Play play({.shards = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  for (const uint64_t id : {1000, 1001}) {
    play.shards[id].finished = true;
    play.Tell(id);
  }
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_EQ(*play.coordinator().ended(), absl::OkStatus());
}

TEST(CoordinatorTest, EndsAtTheNextSnapshotWhenItIsAskedTo) {
  Play play({.shards = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  play.coordinator().EndRun(play.now);
  play.Tell(1);
  EXPECT_EQ(play.KindsTo(1).back(), Kind::kStop);
  EXPECT_EQ(play.generation(), 1) << "the workers go on to a snapshot first";
  play.Snapshot(20);
  for (const uint64_t id : {1, 2}) {
    play.workers[id].ready = true;
    play.Tell(id);
  }
  ASSERT_EQ(play.generation(), 2);
  EXPECT_TRUE(play.history.back().second.ends_run);
  EXPECT_EQ(play.last().first_step, 20);
  // Nobody joins what is over, and who dies while it saves is replaced as ever.
  play.AddWorker(3);
  EXPECT_EQ(play.generation(), 2);
  EXPECT_THAT(play.KindsTo(3), ElementsAre(Kind::kReach, Kind::kWait));
  EXPECT_THAT(play.history.back().second.text, HasSubstr("the run ends: its last generation saves"));
  play.Kill(1);
  play.Pass(milliseconds(1'200));
  ASSERT_EQ(play.generation(), 3);
  EXPECT_TRUE(play.history.back().second.ends_run);
  for (const uint64_t id : {1000, 1001}) {
    play.shards[id].finished = true;
    play.Tell(id);
  }
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_EQ(*play.coordinator().ended(), absl::OkStatus());
  EXPECT_EQ(play.counted_end(), 20);
}

// A scheduler may tell all processes to stop at once.
TEST(CoordinatorTest, WhoWantsToLeaveStaysToSave) {
  Play play({});
  play.AddWorker(1);
  play.AddWorker(2);
  for (const uint64_t id : {1, 2}) {
    play.workers[id].leaves = true;
    play.Tell(id);
  }
  play.coordinator().EndRun(play.now);
  play.Snapshot(10);
  for (const uint64_t id : {1, 2}) {
    play.workers[id].ready = true;
    play.Tell(id);
  }
  ASSERT_EQ(play.generation(), 2);
  EXPECT_THAT(play.last().workers, ElementsAre(1, 2));
  EXPECT_TRUE(play.history.back().second.ends_run);
}

TEST(CoordinatorTest, EndsAtOnceBeforeItsFirstStep) {
  Play play({.first_workers = 2});
  play.AddWorker(1);
  play.coordinator().EndRun(play.now);
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_EQ(play.coordinator().ended()->code(), absl::StatusCode::kCancelled);
}

TEST(CoordinatorTest, SaysHowTheRunIs) {
  Play play({.shards = 2, .leaves = 8});
  for (const uint64_t id : {1, 2}) play.AddWorker(id);
  play.Snapshot(10);
  play.shards[1000].held.push_back(20);
  play.Tell(1000);
  play.workers[1].step = 17;
  play.Tell(1);
  Coordinator::Status status = play.coordinator().Describe();
  EXPECT_EQ(status.generation, 1);
  EXPECT_EQ(status.step, 17);
  EXPECT_FALSE(status.changing);
  EXPECT_THAT(status.snapshots, ElementsAre(10));
  EXPECT_THAT(status.missing_shards, IsEmpty());
  ASSERT_EQ(status.members.size(), 4U);
  EXPECT_EQ(status.members[0].what, "rank 0, micro-batches 0-4");
  EXPECT_EQ(status.members[3].what, "shard 1 of 2");
  play.Kill(1001);
  EXPECT_THAT(play.coordinator().Describe().missing_shards, ElementsAre(1));
}

}  // namespace
}  // namespace starring
