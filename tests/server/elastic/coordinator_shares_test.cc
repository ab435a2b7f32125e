// The shares of workers: spares, workers that leave, and shares that follow the workers' speed.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/elastic/coordinator.h"
#include "tests/server/elastic/played_members.h"

namespace starring {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;
using Kind = Order::Kind;

TEST(CoordinatorTest, MoreWorkersThanLeavesAreSparesThatComeIn) {
  Play play({.leaves = 2, .first_workers = 2});
  for (const uint64_t id : {1, 2, 3}) play.AddWorker(id);
  play.Pass(milliseconds(1'000));
  EXPECT_EQ(play.generation(), 1);
  EXPECT_THAT(play.KindsTo(3), ElementsAre(Kind::kReach, Kind::kWait));  // once
  play.Snapshot(10);
  play.Kill(1);
  play.Pass(milliseconds(1'200));
  ASSERT_EQ(play.generation(), 2);
  EXPECT_THAT(play.last().workers, ElementsAre(2, 3));
}

TEST(CoordinatorTest, ASpareIsToldThatTheRunEnds) {
  Play play({.leaves = 2, .first_workers = 2});
  for (const uint64_t id : {1, 2, 3}) play.AddWorker(id);
  play.coordinator().EndRun(play.now);
  play.Step();
  ASSERT_EQ(play.generation(), 2);
  play.Pass(milliseconds(1'000));
  std::vector<std::string> told;
  for (const auto& [id, order] : play.history) {
    if (id == 3 && order.kind == Kind::kWait) told.push_back(order.text);
  }
  EXPECT_THAT(told, ElementsAre(HasSubstr("a spare: all 2 micro-batches"), HasSubstr("comes in only if that fails")));
  play.Finish();
  EXPECT_EQ(play.KindsTo(3).back(), Kind::kEnd);
}

TEST(CoordinatorTest, AWorkerLeavesWithoutLosingAStep) {
  Play play({});
  play.AddWorker(1);
  play.AddWorker(2);
  play.workers[1].leaves = true;
  play.Tell(1);
  EXPECT_EQ(play.KindsTo(2).back(), Kind::kStop);
  play.Snapshot(10);
  for (const uint64_t id : {1, 2}) {
    play.workers[id].ready = true;
    play.Tell(id);
  }
  ASSERT_EQ(play.generation(), 2);
  EXPECT_THAT(play.last().workers, ElementsAre(2));
  EXPECT_EQ(play.last().first_step, 10);
  play.Kill(1);
  EXPECT_THAT(play.said, testing::Contains("worker 1 has left"));
  play.Pass(milliseconds(2'000));
  EXPECT_EQ(play.generation(), 2);
}

TEST(CoordinatorTest, SharesFollowSpeedAndDoNotOscillate) {
  Play play({.leaves = 16});
  play.AddWorker(1);
  play.AddWorker(2);
  EXPECT_EQ(std::ranges::count(play.last().leaf_owners, 0), 8);
  std::mt19937 random(7);
  const auto measure = [&] {
    // Half speed, and a twentieth more or less.
    const auto noise = [&] { return 0.95 + 0.1 * static_cast<double>(random() % 1000) / 1000; };
    play.workers[1].seconds_per_leaf = 0.01 * noise();
    play.workers[2].seconds_per_leaf = 0.02 * noise();
  };
  int64_t step = 0;
  int64_t generations = 0;
  for (int minute = 0; minute < 20; ++minute) {
    for (int second = 0; second < 60; ++second) {
      measure();
      play.Pass(milliseconds(1'000));
      if (play.KindsTo(1).back() != Kind::kStop) continue;
      play.Snapshot(step += 10);
      for (const uint64_t id : {1, 2}) {
        play.workers[id].ready = true;
        play.Tell(id);
      }
      ++generations;
    }
  }
  EXPECT_EQ(generations, 1);
  // The best: 11 : 5 takes 110 : 100, and 10 : 6 takes 100 : 120.
  EXPECT_THAT(std::ranges::count(play.last().leaf_owners, 0), testing::AnyOf(10, 11));
}

// Dealing takes long if there are many workers: no report causes it, and what has gained nothing is not tried again at
// once.
TEST(CoordinatorTest, SharesAreDealtSeldom) {
  Play play({.leaves = 3});
  play.AddWorker(1);
  play.AddWorker(2);
  ASSERT_EQ(std::ranges::count(play.last().leaf_owners, 0), 2);
  const auto set_speeds = [&](double first, double second) {
    play.workers[1].seconds_per_leaf = first;
    play.workers[2].seconds_per_leaf = second;
  };
  set_speeds(1, 1);  // 2 : 1 is the best, and leaves a worker idle: only dealing shows it
  play.Pass(milliseconds(20'500));
  set_speeds(2, 1);  // 1 : 2 would be faster
  play.Pass(milliseconds(19'000));
  EXPECT_EQ(play.OrdersTo(1, Kind::kStop), 0);
  play.now += milliseconds(900);
  for (int report = 0; report < 10; ++report) play.Tell(1);
  EXPECT_EQ(play.OrdersTo(1, Kind::kStop), 0);
  play.Pass(milliseconds(1'000));
  EXPECT_GT(play.OrdersTo(1, Kind::kStop), 0);
}

}  // namespace
}  // namespace starring
