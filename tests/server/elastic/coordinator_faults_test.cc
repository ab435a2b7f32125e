// Faults at any moment: the run goes on, and each step counts once.
#include <chrono>
#include <cstdint>
#include <iterator>
#include <random>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/elastic/coordinator.h"
#include "server/elastic/generation_log.h"
#include "tests/server/elastic/played_members.h"

namespace starring {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::ElementsAre;
using Kind = Order::Kind;

TEST(CoordinatorTest, AnOrderThatWasLostIsRepeated) {
  Play play({.shards = 2});
  play.unreached = {2, 1001};
  play.AddWorker(1);
  play.AddWorker(2);
  ASSERT_EQ(play.generation(), 1);
  play.Pass(milliseconds(3'900));
  // Not for each report.
  EXPECT_THAT(play.OrdersTo(2, Kind::kTrain), AllOf(testing::Ge(3), testing::Le(4)));
  EXPECT_THAT(play.OrdersTo(1001, Kind::kServe), AllOf(testing::Ge(3), testing::Le(4)));
  EXPECT_EQ(play.OrdersTo(1, Kind::kTrain), 1);
  EXPECT_EQ(play.OrdersTo(1000, Kind::kServe), 1);
  play.unreached.clear();
  play.Pass(milliseconds(1'200));
  EXPECT_EQ(play.workers[2].generation, 1);
  EXPECT_EQ(play.shards[1001].generation, 1);
  EXPECT_EQ(play.generation(), 1);

  // The order to stop, and that to leave the generation.
  play.workers[1].leaves = true;
  play.Tell(1);
  ASSERT_EQ(play.OrdersTo(2, Kind::kStop), 1);
  play.Pass(milliseconds(1'200));
  EXPECT_EQ(play.OrdersTo(2, Kind::kStop), 2);
  play.unreached = {1001};
  play.Kill(1);
  play.Pass(milliseconds(1'500));
  EXPECT_EQ(play.generation(), 1) << "a shard has not left it";
  play.unreached.clear();
  play.Pass(milliseconds(1'200));
  EXPECT_EQ(play.generation(), 2);
}

enum class Change { kWorkerDies, kWorkerJoins, kWorkerLeaves, kShardDies };

class FaultTest : public testing::TestWithParam<Change> {
 protected:
  static void Make(Change change, Play* play) {
    const uint64_t worker = play->workers.begin()->first;
    switch (change) {
      case Change::kWorkerDies:
        return play->Kill(worker);
      case Change::kWorkerJoins:
        return play->AddWorker(7);
      case Change::kWorkerLeaves:
        play->workers[worker].leaves = true;
        return play->Tell(worker);
      case Change::kShardDies:
        return play->Kill(play->shards.rbegin()->first);
    }
  }
  // A run with one change, from its beginning to its end, and what goes wrong. Returns how many orders there were.
  static int64_t PlayRun(Change change, const Fault& fault) {
    const RunSetup setup{.shards = 2, .fault = fault, .folder = NewFolder()};
    Play play(setup);
    for (const uint64_t id : {1, 2}) play.AddWorker(id);
    EXPECT_TRUE(play.GoesOnUntil([&] { return play.newest_step >= 20 && play.Runs(); }));
    if (HasFailure()) return 0;
    const int64_t before = play.generation();
    Make(change, &play);
    // One that died on its way in has changed nothing.
    if (change == Change::kWorkerJoins && !play.workers.contains(7)) play.AddWorker(8);
    EXPECT_TRUE(play.GoesOnUntil([&] { return play.generation() > before && play.Runs(); }));
    EXPECT_TRUE(play.GoesOnUntil([&] {
      if (play.Runs()) play.Finish();
      return play.coordinator().ended().has_value();
    }));
    if (HasFailure()) return 0;
    EXPECT_EQ(*play.coordinator().ended(), absl::OkStatus());
    EXPECT_EQ(GenerationLog::Peek(setup.folder).progress, GenerationLog::Progress::kEnded);
    EXPECT_EQ(CheckExactlyOnce(play.Log()), absl::OkStatus());
    return play.sent;
  }
};

// At each order of the change, and of the run's beginning and end.
TEST_P(FaultTest, TheRunSurvivesOneAtEveryOrder) {
  const int64_t order_count = PlayRun(GetParam(), {});
  ASSERT_GT(order_count, 15);
  for (const Fault::Kind kind :
       {Fault::Kind::kOrderIsLost, Fault::Kind::kCoordinatorDiesBefore, Fault::Kind::kCoordinatorDiesWriting,
        Fault::Kind::kCoordinatorDiesAfter, Fault::Kind::kShardDies, Fault::Kind::kWorkerDies}) {
    for (int64_t order = 0; order < order_count; ++order) {
      PlayRun(GetParam(), {.kind = kind, .order = order});
      ASSERT_FALSE(HasFailure()) << "fault " << static_cast<int>(kind) << " at order " << order << " of "
                                 << order_count;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EachChange, FaultTest,
                         testing::Values(Change::kWorkerDies, Change::kWorkerJoins, Change::kWorkerLeaves,
                                         Change::kShardDies));

// Two faults, of which the second comes before the first was noticed.
TEST(CoordinatorTest, AWorkerWhoseOrderToTrainWasLostIsReadyForTheNextGeneration) {
  Play play({.shards = 2});
  play.unreached = {2};
  play.AddWorker(1);
  play.AddWorker(2);
  ASSERT_EQ(play.generation(), 1);
  play.unreached.clear();
  play.shards[1000].trouble = "rank 1 has not joined";
  play.Tell(1000);
  ASSERT_EQ(play.generation(), 2);
  EXPECT_THAT(play.last().workers, ElementsAre(1, 2));
}

// Random failures, at any moment of any change: a generation always follows, and the log proves that each step counted
// once. A shard that dies loses the snapshots that were in memory alone.
TEST(CoordinatorTest, SurvivesAnyOrderOfFailures) {
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    Play play({.shards = 2, .first_workers = 3});
    for (const uint64_t id : {1, 2, 3}) play.AddWorker(id);
    const auto any = [&](const auto& members) { return std::next(members.begin(), random() % members.size())->first; };
    // To a coordinator that was started again a young run is one that has lost its snapshots: it needs one first.
    const bool coordinator_dies = seed % 2 == 0;
    if (coordinator_dies) play.Step();
    uint64_t next_id = 10;
    for (int event = 0; event < 60; ++event) {
      for (int wait = 0; wait < 40 && !play.Runs(); ++wait) {
        play.Pass(milliseconds(500));
        play.Recover();
      }
      ASSERT_FALSE(play.coordinator().ended().has_value()) << *play.coordinator().ended();
      ASSERT_TRUE(play.Runs()) << "event " << event;
      EXPECT_EQ(play.last().first_step, play.counted_end());
      // Three generations without a durable one could end the run (kStrikesMax).
      play.Step(/*is_durable=*/event % 2 == 1 || random() % 2 == 0);
      if (play.workers.empty()) continue;
      const uint64_t worker = any(play.workers);
      switch (random() % 6) {
        case 0:
          play.Kill(worker);
          break;
        case 1:
          play.AddWorker(next_id++);
          break;
        case 2:
          if (!play.shards.empty()) play.Kill(any(play.shards));
          break;
        case 3:
          play.silent.insert(worker);
          play.Pass(milliseconds(5'500));
          play.silent.erase(worker);
          play.workers[worker] = {.generation = play.workers[worker].generation};  // which it remembers
          play.AddWorker(worker);
          break;
        case 4:
          play.workers[worker].leaves = random() % 2 == 0;
          break;
        default:
          play.fault = {.kind = coordinator_dies ? static_cast<Fault::Kind>(random() % 4) : Fault::Kind::kOrderIsLost,
                        .order = play.sent + static_cast<int64_t>(random() % 12)};
          break;
      }
      play.Pass(milliseconds(random() % 2'000));
    }
    EXPECT_GT(play.generation(), 10);
    EXPECT_EQ(CheckExactlyOnce(play.Log()), absl::OkStatus());
  }
}

}  // namespace
}  // namespace starring
