#include "common/transport/memory/host_board.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::HasSubstr;

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

using Message = std::tuple<int, int, std::string>;  // from, tag, data

std::span<const std::byte> BytesOf(const std::string& text) { return std::as_bytes(std::span(text)); }

std::vector<Message> TakeAll(HostBoard& board) {
  std::vector<Message> messages;
  EXPECT_EQ(board.Take([&](int from, int tag, std::span<const std::byte> data) {
    messages.emplace_back(from, tag, std::string(reinterpret_cast<const char*>(data.data()), data.size()));
  }),
            absl::OkStatus());
  return messages;
}

TEST_F(HostBoardTest, MessagesArriveInTheOrderOfTheirSender) {
  HostBoard zero = BoardOf(0), one = BoardOf(1), two = BoardOf(2);
  const std::string longest(HostBoard::kMessageBytesMax, 'x');
  EXPECT_TRUE(zero.Send(1, 7, BytesOf("a")));
  EXPECT_TRUE(two.Send(1, 70'000, BytesOf(longest)));
  EXPECT_TRUE(zero.Send(1, 7, {}));
  EXPECT_EQ(TakeAll(one), (std::vector<Message>{{0, 7, "a"}, {0, 7, ""}, {2, 70'000, longest}}));
  EXPECT_TRUE(TakeAll(one).empty());
  EXPECT_TRUE(TakeAll(zero).empty());
}

// The sender of a message that found no place is rung when there is one.
TEST_F(HostBoardTest, AFullQueueTakesNoMessage) {
  HostBoard zero = BoardOf(0), one = BoardOf(1);
  int sent = 0;
  while (sent < 1000 && zero.Send(1, sent, {})) ++sent;
  ASSERT_GT(sent, 1);
  ASSERT_LT(sent, 1000);
  const uint32_t seen = zero.bell();
  EXPECT_EQ(std::ssize(TakeAll(one)), sent);
  EXPECT_NE(zero.bell(), seen);
  EXPECT_TRUE(zero.Send(1, 5, {}));
  EXPECT_EQ(TakeAll(one), (std::vector<Message>{{0, 5, ""}}));
}

// One sender and one receiver at full speed: nothing is lost, doubled, torn or out of order.
TEST_F(HostBoardTest, MessagesSurviveTheRace) {
  constexpr int kMessages = 20'000;
  std::thread sender([&] {
    HostBoard zero = BoardOf(0);
    for (int i = 0; i < kMessages; ++i) {
      const std::string text(i % (HostBoard::kMessageBytesMax + 1), static_cast<char>('a' + i % 26));
      uint32_t seen = zero.bell();
      while (!zero.Send(1, i, BytesOf(text))) {
        zero.Sleep(seen, seconds(10));
        seen = zero.bell();
      }
    }
  });
  HostBoard one = BoardOf(1);
  int next = 0;
  const auto start = steady_clock::now();
  while (next < kMessages && steady_clock::now() - start < seconds(9)) {
    const uint32_t seen = one.bell();
    const std::vector<Message> messages = TakeAll(one);
    for (const auto& [from, tag, text] : messages) {
      ASSERT_EQ(tag, next);
      ASSERT_EQ(text, std::string(next % (HostBoard::kMessageBytesMax + 1), static_cast<char>('a' + next % 26)));
      ++next;
    }
    if (messages.empty()) one.Sleep(seen, seconds(10));
  }
  EXPECT_EQ(next, kMessages);
  sender.join();
}

// Another process may write anything into the memory. It must not make this one read outside of it.
TEST_F(HostBoardTest, ADamagedBoardIsAnError) {
  HostBoard zero = BoardOf(0), one = BoardOf(1);
  const std::string text = "a message";
  ASSERT_TRUE(zero.Send(1, 3, BytesOf(text)));
  auto* const bytes = reinterpret_cast<char*>(memory_.data());
  const size_t size = memory_.size() * sizeof(Line);
  char* const found = static_cast<char*>(memmem(bytes, size, text.data(), text.size()));
  ASSERT_NE(found, nullptr);
  const uint32_t length = 57;
  std::memcpy(found - sizeof(length), &length, sizeof(length));
  const auto ignore = [](int, int, std::span<const std::byte>) {};
  EXPECT_THAT(std::string(one.Take(ignore).message()), HasSubstr("a message of 57 bytes"));
  std::memset(bytes, 0xff, size);
  EXPECT_FALSE(one.Take(ignore).ok());
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
