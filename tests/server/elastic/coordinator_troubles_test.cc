// One worker's trouble stays its own: whom an error ends, whom a generation waits for no longer, who is let in.
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/error_origin.h"
#include "common/job/leaf_shares.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/elastic/coordinator.h"
#include "tests/server/elastic/played_members.h"

namespace starring {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::UnorderedElementsAre;
using Kind = Order::Kind;
using From = ErrorOrigin::Kind;

// A run whose generation has come to a snapshot of step 10.
std::unique_ptr<Play> Begun(const RunSetup& setup = {}) {
  auto play = std::make_unique<Play>(setup);
  for (int id = 1; id <= setup.first_workers; ++id) play->AddWorker(static_cast<uint64_t>(id));
  play->Step();
  EXPECT_EQ(play->generation(), 1);
  return play;
}

// By leaf.
std::vector<uint64_t> WorkersByLeaf(const Generation& generation) {
  std::vector<uint64_t> workers;
  for (const int owner : generation.leaf_owners) workers.push_back(generation.workers[static_cast<size_t>(owner)]);
  return workers;
}

void ExpectApart(const Generation& one, const Generation& other) {
  const std::vector<uint64_t> before = WorkersByLeaf(one), after = WorkersByLeaf(other);
  for (size_t leaf = 0; leaf < before.size(); ++leaf) EXPECT_NE(before[leaf], after[leaf]) << leaf;
}

TEST(CoordinatorTest, AWorkerThatFailsLeavesAndTheOthersGoOn) {
  const auto play = Begun({.first_workers = 3});
  play->workers[2].failure = absl::InternalError("cudaMalloc: uncorrectable ECC error");
  play->Tell(2);
  EXPECT_FALSE(play->coordinator().ended().has_value());
  EXPECT_EQ(play->KindsTo(2).back(), Kind::kEnd);
  EXPECT_THAT(play->said, Contains("worker 2 has failed: cudaMalloc: uncorrectable ECC error"));
  ASSERT_EQ(play->generation(), 2);
  EXPECT_THAT(play->last().workers, ElementsAre(1, 3));
  EXPECT_EQ(play->last().first_step, 10);
}

// They fail one after the other before there is a further snapshot.
TEST(CoordinatorTest, WorkersThatFailAreNoStrikesAgainstTheRun) {
  const auto play = Begun({.first_workers = 6});
  for (const uint64_t id : {1, 2, 3, 4, 5}) {
    play->workers[id].failure = absl::InternalError("no memory");
    play->Tell(id);
    play->workers.erase(id);
  }
  EXPECT_FALSE(play->coordinator().ended().has_value());
  EXPECT_EQ(play->generation(), 6);
  EXPECT_THAT(play->last().workers, ElementsAre(6));
}

// The shards hear from a worker that it gives up before the coordinator does.
TEST(CoordinatorTest, AFailureThatTheShardsHearOfFirstIsThatWorkersToo) {
  const auto play = Begun({.first_workers = 6});
  for (const uint64_t id : {1, 2, 3, 4, 5}) {
    play->hung.insert(id);
    play->Pass(milliseconds(100));
    play->shards[1000].trouble = absl::StrCat("rank 0 gave up: worker ", id, " has no memory");
    play->Tell(1000);
    play->workers[id].failure = absl::InternalError("no memory");
    play->Tell(id);
    play->workers.erase(id);
  }
  EXPECT_FALSE(play->coordinator().ended().has_value()) << testing::PrintToString(play->said);
  EXPECT_EQ(play->generation(), 6);
}

TEST(CoordinatorTest, TooFewWorkersAfterAFailureAreWaitedForAsAfterADeath) {
  const auto play = Begun({.min_workers = 2});
  play->workers[2].failure = absl::InternalError("no memory");
  play->Tell(2);
  play->workers.erase(2);
  play->Pass(milliseconds(5'000));
  EXPECT_FALSE(play->coordinator().ended().has_value());
  EXPECT_THAT(play->said, Contains(HasSubstr("1 of at least 2 workers")));
  play->AddWorker(3);
  ASSERT_EQ(play->generation(), 2);
  EXPECT_THAT(play->last().workers, ElementsAre(1, 3));
}

constexpr ErrorOrigin kNotFinite13 = {.kind = From::kNotFinite, .number = 13};
constexpr ErrorOrigin kOtherLoss13 = {.kind = From::kOtherLoss, .number = 13};

TEST(CoordinatorTest, AnErrorThatASecondWorkerHasToEndsTheRun) {
  const auto play = Begun();
  const Generation first = play->last();
  play->Trouble(2, "step 13: the gradient of fc1 is nan", kNotFinite13);
  EXPECT_FALSE(play->coordinator().ended().has_value());
  ASSERT_EQ(play->generation(), 2);
  EXPECT_EQ(play->last().first_step, 10);
  ExpectApart(first, play->last());
  EXPECT_THAT(play->said, Contains(HasSubstr("step 13 is computed again to check that")));
  play->Trouble(1, "step 13: the gradient of fc1 is nan", kNotFinite13);
  ASSERT_TRUE(play->coordinator().ended().has_value());
  EXPECT_EQ(play->coordinator().ended()->code(), absl::StatusCode::kInternal);
  EXPECT_EQ(play->coordinator().ended()->message(), "step 13: the gradient of fc1 is nan (reported by worker 1)");
  EXPECT_EQ(play->KindsTo(2).back(), Kind::kEnd);
}

TEST(CoordinatorTest, AnErrorThatOneWorkerAloneHasIsThatWorkers) {
  const auto play = Begun({.first_workers = 3});
  play->Trouble(2, "step 13: the gradient of fc1 is nan", kNotFinite13);
  ASSERT_EQ(play->generation(), 2);
  play->Snapshot(13);
  EXPECT_EQ(play->generation(), 2) << "step 13 is not made yet";
  play->Snapshot(14);
  EXPECT_EQ(play->KindsTo(2).back(), Kind::kEnd);
  EXPECT_THAT(play->said, Contains(AllOf(HasSubstr("worker 2 has failed: step 13"), HasSubstr("other workers"))));
  ASSERT_EQ(play->generation(), 3);
  EXPECT_EQ(play->last().first_step, 14);
  EXPECT_THAT(play->last().workers, UnorderedElementsAre(1, 3));
  EXPECT_FALSE(play->coordinator().ended().has_value());
}

TEST(CoordinatorTest, AWorkerThatHasItAgainOnOtherMicroBatchesLeaves) {
  const auto play = Begun({.first_workers = 3});
  play->Trouble(2, "step 13: the gradient of fc1 is nan", kNotFinite13);
  ASSERT_EQ(play->generation(), 2);
  play->Trouble(2, "step 11: the gradient of fc1 is nan", {.kind = From::kNotFinite, .number = 11});
  EXPECT_EQ(play->KindsTo(2).back(), Kind::kEnd);
  ASSERT_EQ(play->generation(), 3);
  EXPECT_THAT(play->last().workers, UnorderedElementsAre(1, 3));
  EXPECT_FALSE(play->coordinator().ended().has_value());
}

// The new coordinator does not know about the claim. The workers report why they have ended their part.
TEST(CoordinatorTest, ACoordinatorThatIsStartedAgainChecksAClaimToo) {
  const auto play = Begun();
  const Generation first = play->last();
  for (const uint64_t id : {1, 2}) play->workers[id].ready = true;
  play->workers[2].trouble = "step 13: the gradient of fc1 is nan";
  play->workers[2].origin = kNotFinite13;
  play->StartCoordinator();
  ASSERT_TRUE(play->AddShard(0, 2000).ok());
  play->shards.erase(1000);
  play->shards[2000].held = play->shards[2000].durable = {10};
  play->Tell(2000);
  play->AddWorker(2);
  play->AddWorker(1);
  ASSERT_EQ(play->generation(), 2);
  ExpectApart(first, play->last());
  play->Trouble(1, "step 13: the gradient of fc1 is nan", kNotFinite13);
  ASSERT_TRUE(play->coordinator().ended().has_value());
  EXPECT_EQ(play->coordinator().ended()->code(), absl::StatusCode::kInternal);
}

TEST(CoordinatorTest, OneWorkerAloneIsBelieved) {
  const auto play = Begun({.first_workers = 1});
  play->Trouble(1, "step 13: the gradient of fc1 is nan", kNotFinite13);
  ASSERT_TRUE(play->coordinator().ended().has_value());
  EXPECT_EQ(play->coordinator().ended()->code(), absl::StatusCode::kInternal);
}

// Later snapshots may have the wrong step in them.
TEST(CoordinatorTest, AnotherLossIsComputedAThirdTimeFromBeforeItsStep) {
  const auto play = Begun();
  const Generation first = play->last();
  play->Snapshot(14, /*is_durable=*/false);
  play->Snapshot(15, /*is_durable=*/false);
  play->Trouble(1, "step 13 was computed again, and its loss is 2 where it was 1", kOtherLoss13);
  ASSERT_EQ(play->generation(), 2);
  EXPECT_EQ(play->last().first_step, 10);
  ExpectApart(first, play->last());
  play->Snapshot(20);
  play->Snapshot(40);
  EXPECT_EQ(play->generation(), 2) << "nobody is to blame";
  EXPECT_FALSE(play->coordinator().ended().has_value());
  // A snapshot that is kept again shows that the claim is forgotten.
  EXPECT_EQ(play->history.back().second.kind, Kind::kKeep);
  EXPECT_EQ(play->history.back().second.generation.first_step, 40);
}

TEST(CoordinatorTest, AnotherLossThatComesBackEndsTheRun) {
  const auto play = Begun();
  play->Trouble(1, "its loss is 2 where it was 1", kOtherLoss13);
  ASSERT_EQ(play->generation(), 2);
  play->Trouble(1, "its loss is 3 where it was 1, and then 2", kOtherLoss13);
  ASSERT_TRUE(play->coordinator().ended().has_value());
  EXPECT_EQ(play->coordinator().ended()->message(), "its loss is 3 where it was 1, and then 2 (reported by worker 1)");
}

TEST(CoordinatorTest, ALossThatCannotBeCheckedAnyMoreEndsTheRun) {
  const auto play = Begun();
  play->Snapshot(14);
  play->Trouble(1, "its loss is 2 where it was 1", kOtherLoss13);
  ASSERT_TRUE(play->coordinator().ended().has_value());
  EXPECT_THAT(std::string(play->coordinator().ended()->message()),
              AllOf(HasSubstr("its loss is 2"), HasSubstr("no snapshot of a step before it is left")));
}

TEST(CoordinatorTest, WhoNamesAServerThatOthersReachIsLeftOutForAPauseThatDoubles) {
  const auto play = Begun({.first_workers = 3});
  for (const int pause : {5, 10, 20}) {
    const int64_t before = play->generation();
    play->Trouble(3, "server 0 does not answer", {.kind = From::kServer, .number = 0});
    ASSERT_EQ(play->generation(), before + 1);
    EXPECT_THAT(play->last().workers, ElementsAre(1, 2));
    EXPECT_THAT(play->said, Contains(HasSubstr(absl::StrCat("worker 3 is left out for ", pause, " s: "))));
    EXPECT_EQ(play->KindsTo(3).back(), Kind::kWait);
    play->Pass(std::chrono::seconds(pause) - milliseconds(200));
    EXPECT_THAT(play->KindsTo(1), Not(Contains(Kind::kStop))) << "nobody waits for it";
    play->Pass(milliseconds(400));
    EXPECT_EQ(play->KindsTo(1).back(), Kind::kStop);
    for (const uint64_t id : {1, 2}) {
      play->workers[id].ready = true;
      play->Tell(id);
    }
    EXPECT_THAT(play->last().workers, ElementsAre(1, 2, 3));
    std::erase_if(play->history, [](const auto& entry) { return entry.first == 1; });
  }
  EXPECT_FALSE(play->coordinator().ended().has_value());
}

TEST(CoordinatorTest, WhoHasNotJoinedIsLeftOutAndNotWhoHasWaited) {
  const auto play = Begun({.shards = 2, .first_workers = 3});
  play->shards[1001].unjoined = {2};
  play->Tell(1001);
  play->Trouble(1, "rank 2 of 3 has not joined", {.kind = From::kMissingWorkers, .number = 1});
  ASSERT_EQ(play->generation(), 2);
  EXPECT_THAT(play->last().workers, ElementsAre(1, 2));
  EXPECT_THAT(play->said, Contains(HasSubstr("worker 3 is left out for 5 s: it has not joined at shard 1")));
}

TEST(CoordinatorTest, WhoAShardHasWaitedForIsLeftOut) {
  const auto play = Begun({.shards = 2, .first_workers = 3});
  play->shards[1001].trouble = "rank 1 has not contributed bucket 0 of step 12 within 60 s";
  play->shards[1001].late = {1};
  play->Tell(1001);
  ASSERT_EQ(play->generation(), 2);
  EXPECT_THAT(play->last().workers, ElementsAre(1, 3));
}

TEST(CoordinatorTest, IfTooFewWouldRemainNobodyIsLeftOut) {
  const auto play = Begun({.min_workers = 2});
  for (int strike = 0; strike < 4 && !play->coordinator().ended().has_value(); ++strike) {
    play->Trouble(2, absl::StrCat("server 0 does not answer, attempt ", strike), {.kind = From::kServer, .number = 0});
  }
  ASSERT_TRUE(play->coordinator().ended().has_value());
  EXPECT_THAT(std::string(play->coordinator().ended()->message()), HasSubstr("3 generations have not brought"));
}

// As behind a firewall. The others train on meanwhile.
TEST(CoordinatorTest, AWorkerThatCannotReachAShardDoesNotComeIn) {
  const auto play = Begun({.shards = 2});
  play->cut_off.insert({3, "host:1001"});
  play->AddWorker(3);
  play->Pass(milliseconds(70'000));
  EXPECT_EQ(play->generation(), 1);
  EXPECT_THAT(play->KindsTo(1), Not(Contains(Kind::kStop)));
  EXPECT_THAT(play->said, Contains("worker 3 is left out for 5 s: a server cannot be reached"));
  EXPECT_THAT(play->said, Contains("worker 3 is left out for 40 s: a server cannot be reached"));
  EXPECT_EQ(play->OrdersTo(3, Kind::kReach), 4);
  // A change does not wait for it either.
  play->Kill(1);
  play->Pass(milliseconds(1'200));
  ASSERT_EQ(play->generation(), 2);
  EXPECT_THAT(play->last().workers, ElementsAre(2));
  play->cut_off.clear();
  play->Pass(milliseconds(40'000));
  EXPECT_EQ(play->KindsTo(2).back(), Kind::kStop) << "it reaches the shard now, and joins";
}

TEST(CoordinatorTest, AFirstWorkerThatCannotReachAShardIsNamed) {
  Play play({.shards = 2, .first_workers = 2});
  play.cut_off.insert({2, "host:1001"});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Pass(milliseconds(61'000));
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_THAT(std::string(play.coordinator().ended()->message()),
              AllOf(HasSubstr("1 of at least 2 workers have come; worker 2: a spare for"),
                    HasSubstr("a server cannot be reached")));
}

TEST(CoordinatorTest, AWorkerWhosePathBreaksIsLeftOutUntilItReachesAllShards) {
  const auto play = Begun({.shards = 2, .first_workers = 3});
  play->cut_off.insert({2, "host:1001"});
  play->Trouble(2, "server host:1001 cannot be reached", {.kind = From::kServer, .number = 1});
  ASSERT_EQ(play->generation(), 2);
  EXPECT_THAT(play->last().workers, ElementsAre(1, 3));
}

// All of them are innocent, whoever was first to say so.
TEST(CoordinatorTest, AShardThatNoWorkerReachesBlamesNobody) {
  const auto play = Begun({.shards = 2});
  for (const uint64_t id : {1, 2}) play->cut_off.insert({id, "host:1001"});
  play->Trouble(1, "server host:1001 cannot be reached", {.kind = From::kServer, .number = 1});
  EXPECT_EQ(play->generation(), 1);
  EXPECT_THAT(play->said, Not(Contains(HasSubstr("which others reach"))));
  play->cut_off.clear();
  play->Pass(milliseconds(6'000));
  EXPECT_EQ(play->generation(), 2);
  EXPECT_EQ(play->last().workers.size(), 2U);
}

// It has never begun to look, and nobody knows.
TEST(CoordinatorTest, ALostOrderToReachTheShardsIsRepeated) {
  Play play({.first_workers = 2});
  play.fault = {.kind = Fault::Kind::kOrderIsLost, .order = play.sent};
  play.AddWorker(1);
  EXPECT_EQ(play.OrdersTo(1, Kind::kReach), 0);
  play.AddWorker(2);
  EXPECT_EQ(play.generation(), 0);
  play.Pass(milliseconds(1'200));
  EXPECT_EQ(play.generation(), 1);
}

TEST(CoordinatorTest, NoMoreWorkersComeInThanShardsHaveRoomFor) {
  Play play({.shards = 2, .first_workers = 2});
  play.shards[1000].contributions_max = 100;
  play.shards[1001].contributions_max = 2;
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  play.AddWorker(3);
  play.Pass(milliseconds(2'000));
  EXPECT_EQ(play.generation(), 1);
  EXPECT_THAT(play.KindsTo(1), Not(Contains(Kind::kStop)));
  EXPECT_EQ(play.OrdersTo(3, Kind::kWait), 1);
  EXPECT_THAT(play.history.back().second.text,
              AllOf(HasSubstr("a spare: shard 1 has memory for 2 contributions"), HasSubstr("--memory_limit_gb")));
  // It is there when one leaves.
  play.Kill(1);
  play.Pass(milliseconds(1'200));
  ASSERT_EQ(play.generation(), 2);
  EXPECT_THAT(play.last().workers, ElementsAre(2, 3));
  // And comes in when there is room.
  play.AddWorker(4);
  for (const uint64_t id : {1000, 1001}) play.shards[id].contributions_max = 8;
  play.Pass(milliseconds(500));
  EXPECT_EQ(play.KindsTo(2).back(), Kind::kStop);
}

// With 8 leaves three workers make more contributions than three.
TEST(CoordinatorTest, RoomIsCountedInContributions) {
  const auto made = std::ssize(ContributorsOf(DealLeavesEvenly(8, 3)));
  ASSERT_GT(made, 3);
  for (const bool suffices : {false, true}) {
    Play play({.first_workers = 2});
    play.shards[1000].contributions_max = suffices ? made : made - 1;
    play.AddWorker(1);
    play.AddWorker(2);
    play.Snapshot(10);
    play.AddWorker(3);
    play.Pass(milliseconds(500));
    EXPECT_EQ(play.KindsTo(1).back() == Kind::kStop, suffices);
  }
}

TEST(CoordinatorTest, DescriptorsAreRoomToo) {
  Play play({.first_workers = 2});
  play.shards[1000].workers_max = 2;
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  play.AddWorker(3);
  play.Pass(milliseconds(500));
  EXPECT_THAT(play.history.back().second.text, HasSubstr("shard 0 has descriptors for 2 workers, not for 3"));
}

TEST(CoordinatorTest, ARefusalOfAShardGoesBackToTheWorkersBefore) {
  const auto play = Begun();
  play->AddWorker(3);
  play->Step();
  ASSERT_EQ(play->generation(), 2);
  ASSERT_THAT(play->last().workers, ElementsAre(1, 2, 3));
  play->Trouble(1, "shard 0 of 1 needs 0.171 GB for 3 workers", {.kind = From::kNoRoom, .number = 0});
  ASSERT_EQ(play->generation(), 3);
  EXPECT_THAT(play->last().workers, ElementsAre(1, 2));
  EXPECT_FALSE(play->coordinator().ended().has_value());
}

}  // namespace
}  // namespace starring
