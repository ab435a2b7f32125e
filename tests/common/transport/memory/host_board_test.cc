#include "common/transport/memory/host_board.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace starring {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr HostBoard::Options kOptions = {.rank = 0, .world_size = 3, .bucket_count = 2};

struct alignas(64) Line {
  std::byte bytes[64] = {};
};

class HostBoardTest : public testing::Test {
 protected:
  HostBoard BoardOf(int rank) {
    return {std::as_writable_bytes(std::span(memory_)), {.rank = rank, .world_size = 3, .bucket_count = 2}};
  }
  std::vector<Line> memory_ = std::vector<Line>((HostBoard::Bytes(kOptions) + 63) / 64);
};

TEST_F(HostBoardTest, RanksCountOnOneBoard) {
  HostBoard zero = BoardOf(0), two = BoardOf(2);
  EXPECT_EQ(zero.Arrive(1), 1);
  EXPECT_EQ(two.Arrive(1), 2);
  EXPECT_EQ(two.Update(1), 1);
  EXPECT_EQ(zero.arrivals(1), 2);
  EXPECT_EQ(zero.updates(1), 1);
  EXPECT_EQ(zero.arrivals(0), 0);
  two.Clear();
  EXPECT_EQ(zero.arrivals(1), 0);
  EXPECT_EQ(zero.updates(1), 0);
}

TEST_F(HostBoardTest, SleepEndsInTime) {
  HostBoard board = BoardOf(1);
  const auto start = steady_clock::now();
  board.Sleep(board.bell(), milliseconds(20));
  EXPECT_GE(steady_clock::now() - start, milliseconds(15));
  board.Sleep(board.bell(), microseconds(-1));  // a deadline that has passed
}

TEST_F(HostBoardTest, ARankThatHasBeenRungDoesNotSleep) {
  HostBoard board = BoardOf(1), other = BoardOf(0);
  const uint32_t seen = board.bell();
  other.Ring(1);
  const auto start = steady_clock::now();
  board.Sleep(seen, seconds(10));
  EXPECT_LT(steady_clock::now() - start, seconds(5));
  const uint32_t unchanged = other.bell();
  EXPECT_EQ(unchanged, 0);  // the bell is the other rank's
}

// A rank that looks finds by itself what there is. When it stops looking, its other thread learns what came meanwhile.
TEST_F(HostBoardTest, ARankThatLooksIsNotWoken) {
  HostBoard board = BoardOf(1), other = BoardOf(0);
  std::atomic<bool> awake = false;
  board.BeginLooking();
  const uint32_t seen = board.bell();
  std::thread sleeper([&] {
    BoardOf(1).Sleep(seen, seconds(10));
    awake = true;
  });
  std::this_thread::sleep_for(milliseconds(50));
  other.Ring(1);
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_FALSE(awake);
  const auto start = steady_clock::now();
  board.EndLooking(seen);
  sleeper.join();
  EXPECT_LT(steady_clock::now() - start, seconds(5));
}

TEST_F(HostBoardTest, ABellWakesTheThreadThatLooks) {
  HostBoard board = BoardOf(1), other = BoardOf(0);
  for (int round = 0; round < 200; ++round) {
    const uint32_t seen = board.bell();
    board.BeginLooking();
    std::thread ringer([&] { other.Ring(1); });
    const auto start = steady_clock::now();
    board.Sleep(seen, seconds(10), HostBoard::Sleeper::kLooking);
    EXPECT_LT(steady_clock::now() - start, seconds(5));
    ringer.join();
    board.EndLooking(board.bell());
  }
}

// Two threads of one rank sleep. Each round they see the bell, then look at the count, then sleep: no wake-up is lost,
// or a round takes the ten seconds.
TEST_F(HostBoardTest, WakesEveryThreadOfTheRank) {
  constexpr int kRounds = 2000;
  std::atomic<int> done = 0;
  std::vector<std::thread> sleepers;
  for (int i = 0; i < 2; ++i) {
    sleepers.emplace_back([&] {
      HostBoard board = BoardOf(1);
      for (int round = 1; round <= kRounds; ++round) {
        for (;;) {
          const uint32_t seen = board.bell();
          if (board.arrivals(0).load() >= round) break;
          board.Sleep(seen, seconds(10));
        }
        ++done;
      }
    });
  }
  HostBoard board = BoardOf(0);
  const auto start = steady_clock::now();
  for (int round = 1; round <= kRounds; ++round) {
    board.Arrive(0);
    board.Ring(1);
    while (done < 2 * round && steady_clock::now() - start < seconds(60)) std::this_thread::yield();
  }
  for (std::thread& sleeper : sleepers) sleeper.join();
  EXPECT_LT(steady_clock::now() - start, seconds(9));
}

}  // namespace
}  // namespace starring
