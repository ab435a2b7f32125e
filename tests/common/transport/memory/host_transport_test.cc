#include "common/transport/memory/host_transport.h"

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "common/transport/memory/host_board.h"
#include "gtest/gtest.h"
#include "tests/common/transport/in_memory_transport.h"

namespace starring {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

class Poster final : public Transport::Poster {
 public:
  void OnCompletion(uint64_t) override {}
};

struct alignas(64) Line {
  std::byte bytes[64] = {};
};

// Ranks 0 and 1, and a board with one bucket.
class HostTransportTest : public testing::Test {
 protected:
  static constexpr HostBoard::Options kOptions = {.rank = 0, .world_size = 2, .bucket_count = 1};
  HostTransportTest() { transport_.Attach(&board_); }

  HostBoard BoardOf(int rank) {
    return {std::as_writable_bytes(std::span(memory_)), {.rank = rank, .world_size = 2, .bucket_count = 1}};
  }
  std::vector<uint64_t> Poll() {
    std::vector<Transport::Token> completed;
    EXPECT_EQ(transport_.Poll(completed), absl::OkStatus());
    std::vector<uint64_t> operations;
    for (const Transport::Token& token : completed) operations.push_back(token.operation);
    return operations;
  }
  Transport::Token TokenOf(uint64_t operation) { return {.poster = &poster_, .operation = operation}; }

  InMemoryNetwork network_{2, 1};
  std::vector<Line> memory_ = std::vector<Line>((HostBoard::Bytes(kOptions) + 63) / 64);
  HostBoard board_{std::as_writable_bytes(std::span(memory_)), kOptions};
  Poster poster_;
  HostTransport transport_{network_.CreateTransport(0)};
};

using Operations = std::vector<uint64_t>;

TEST_F(HostTransportTest, AWaitIsOverAtItsTarget) {
  transport_.PostWait(board_.arrivals(0), 2, TokenOf(7));
  transport_.PostWait(board_.updates(0), 1, TokenOf(8));
  EXPECT_EQ(Poll(), Operations());
  HostBoard other = BoardOf(1);
  other.Arrive(0);
  EXPECT_EQ(Poll(), Operations());
  other.Arrive(0);
  EXPECT_EQ(Poll(), Operations{7});
  other.Update(0);
  EXPECT_EQ(Poll(), Operations{8});
  EXPECT_EQ(Poll(), Operations());
}

// The receive completes although a count is waited for, and although few polls look at the network.
TEST_F(HostTransportTest, MessagesGoOnWhileACountIsWaitedFor) {
  transport_.PostWait(board_.arrivals(0), 1, TokenOf(7));
  std::byte sent{5}, received{0};
  const std::unique_ptr<MpiTransport> peer = network_.CreateTransport(1);
  peer->PostSend(0, 16, {&sent, 1}, TokenOf(1));
  transport_.PostReceive(1, 16, {&received, 1}, TokenOf(9));
  Operations operations;
  for (int i = 0; i < 10'000 && operations.empty(); ++i) {
    std::vector<Transport::Token> ignored;
    EXPECT_EQ(peer->Poll(ignored), absl::OkStatus());
    operations = Poll();
  }
  EXPECT_EQ(operations, Operations{9});
  EXPECT_EQ(received, std::byte{5});
}

// No bell rings for what is there already: the next piece of a slice, or an arrival before the wait was posted.
TEST_F(HostTransportTest, DoesNotSleepWithACompletedOperation) {
  transport_.PostWait(board_.updates(0), 1, TokenOf(1));
  EXPECT_EQ(Poll(), Operations());
  board_.Arrive(0);
  transport_.PostWait(board_.arrivals(0), 1, TokenOf(7));
  const auto start = steady_clock::now();
  for (int i = 0; i < 1000; ++i) transport_.Wait(seconds(1));
  EXPECT_LT(steady_clock::now() - start, milliseconds(500));
  EXPECT_EQ(Poll(), Operations{7});
}

TEST_F(HostTransportTest, SleepsWhileItWaitsAndLooksAtTheNetworkNowAndThen) {
  transport_.PostWait(board_.arrivals(0), 1, TokenOf(7));
  EXPECT_EQ(Poll(), Operations());
  const auto start = steady_clock::now();
  transport_.Wait(seconds(10));
  const auto slept = steady_clock::now() - start;
  EXPECT_GE(slept, milliseconds(1));
  EXPECT_LT(slept, seconds(5));
}

// A wake-up before the wait counts, and one meanwhile.
TEST_F(HostTransportTest, RingAndWakeEndAWait) {
  transport_.PostWait(board_.arrivals(0), 1, TokenOf(7));
  for (const bool by_bell : {true, false}) {
    EXPECT_EQ(Poll(), Operations());
    std::thread waker([&] { by_bell ? BoardOf(1).Ring(0) : transport_.Wake(); });
    waker.join();
    const auto start = steady_clock::now();
    for (int i = 0; i < 1000; ++i) transport_.Wait(seconds(1));  // until the next Poll none sleeps
    EXPECT_LT(steady_clock::now() - start, milliseconds(500)) << by_bell;
  }
}

// The thread in the background sleeps on the bell with nothing to wait for, and takes over what the other one leaves.
TEST_F(HostTransportTest, TheBackgroundTakesOver) {
  EXPECT_EQ(Poll(), Operations());
  board_.Arrive(0);
  transport_.BeginLooking();
  transport_.PostWait(board_.arrivals(0), 1, TokenOf(7));
  std::thread background([&] { transport_.WaitInBackground(seconds(10)); });
  transport_.PassOn();
  const auto start = steady_clock::now();
  background.join();
  EXPECT_LT(steady_clock::now() - start, seconds(5));
  transport_.EndLooking();
  EXPECT_EQ(Poll(), Operations{7});
  std::thread idle([&] { transport_.WaitInBackground(seconds(10)); });
  BoardOf(1).Ring(0);
  idle.join();
  EXPECT_LT(steady_clock::now() - start, seconds(5));
}

TEST(HostTransport, WithoutABoardItIsTheNetwork) {
  InMemoryNetwork network(2, 1);
  HostTransport transport(network.CreateTransport(1));
  EXPECT_EQ(transport.rank(), 1);
  EXPECT_EQ(transport.world_size(), 2);
  transport.Wake();
  transport.Wait(milliseconds(1));
  std::vector<Transport::Token> completed;
  EXPECT_EQ(transport.Poll(completed), absl::OkStatus());
  EXPECT_TRUE(completed.empty());
}

}  // namespace
}  // namespace starring
