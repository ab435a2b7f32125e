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
  std::vector<std::byte> sent(HostBoard::kMessageBytesMax + 1, std::byte{5}), received(sent.size());
  const std::unique_ptr<MpiTransport> peer = network_.CreateTransport(1);
  peer->PostSend(0, 16, sent, TokenOf(1));
  transport_.PostReceive(1, 16, received, TokenOf(9));
  Operations operations;
  for (int i = 0; i < 10'000 && operations.empty(); ++i) {
    std::vector<Transport::Token> ignored;
    EXPECT_EQ(peer->Poll(ignored), absl::OkStatus());
    operations = Poll();
  }
  EXPECT_EQ(operations, Operations{9});
  EXPECT_EQ(received, sent);
}

// A short message needs no network. Its receive may come before or after it, and tags are kept apart.
TEST_F(HostTransportTest, ShortMessagesAreTheBoards) {
  HostBoard other = BoardOf(1);
  const std::vector<std::byte> data(HostBoard::kMessageBytesMax, std::byte{6});
  std::vector<std::byte> first(data.size()), second(data.size());
  transport_.PostReceive(1, 16, first, TokenOf(9));
  EXPECT_TRUE(other.Send(0, 17, data));
  EXPECT_EQ(Poll(), Operations());
  EXPECT_TRUE(other.Send(0, 16, data));
  EXPECT_EQ(Poll(), Operations{9});
  EXPECT_EQ(first, data);
  transport_.PostReceive(1, 17, second, TokenOf(10));
  EXPECT_EQ(Poll(), Operations{10});
  EXPECT_EQ(second, data);
  transport_.PostSend(1, 20, {data.data(), 3}, TokenOf(11));
  EXPECT_EQ(Poll(), Operations{11});
  int taken = 0;
  EXPECT_EQ(other.Take([&](int from, int tag, std::span<const std::byte> got) {
    EXPECT_EQ(from, 0);
    EXPECT_EQ(tag, 20);
    EXPECT_EQ(got.size(), 3u);
    ++taken;
  }),
            absl::OkStatus());
  EXPECT_EQ(taken, 1);
}

// Sends beyond the queue's length complete, in order, as the receiver takes them.
TEST_F(HostTransportTest, SendsWaitForAFullQueue) {
  constexpr uint64_t kMessages = 100;
  for (uint64_t i = 0; i < kMessages; ++i) transport_.PostSend(1, static_cast<int>(16 + i), {}, TokenOf(i));
  HostBoard other = BoardOf(1);
  Operations sent;
  int next_tag = 16;
  for (int round = 0; round < 1000 && sent.size() < kMessages; ++round) {
    for (const uint64_t operation : Poll()) sent.push_back(operation);
    ASSERT_LT(std::ssize(sent), next_tag - 16 + 64) << "the queue has an end";
    EXPECT_EQ(other.Take([&](int, int tag, std::span<const std::byte>) { EXPECT_EQ(tag, next_tag++); }),
              absl::OkStatus());
  }
  ASSERT_EQ(sent.size(), kMessages);
  for (uint64_t i = 0; i < kMessages; ++i) EXPECT_EQ(sent[i], i);
}

// A later message has room in the queue, but others wait for it.
TEST_F(HostTransportTest, NoMessageOvertakesOneThatWaits) {
  int posted = 0;
  const auto post = [&] {
    transport_.PostSend(1, 16 + posted, {}, TokenOf(static_cast<uint64_t>(posted)));
    ++posted;
  };
  for (int i = 0; i < 40; ++i) post();
  HostBoard other = BoardOf(1);
  int next_tag = 16;
  for (int round = 0; round < 10; ++round) {
    EXPECT_EQ(other.Take([&](int, int tag, std::span<const std::byte>) { EXPECT_EQ(tag, next_tag++); }),
              absl::OkStatus());
    if (round == 0) post();
    (void)Poll();
  }
  EXPECT_EQ(next_tag, 16 + posted);
}

TEST_F(HostTransportTest, AMessageOfAnotherLengthIsAnError) {
  HostBoard other = BoardOf(1);
  std::byte place[8];
  transport_.PostReceive(1, 16, place, TokenOf(9));
  EXPECT_TRUE(other.Send(0, 16, std::span(place).first(7)));
  std::vector<Transport::Token> completed;
  EXPECT_EQ(transport_.Poll(completed).code(), absl::StatusCode::kInternal);
}

// The sleeper wakes up at once, and not when the network is due.
TEST_F(HostTransportTest, AShortMessageEndsAWait) {
  std::byte place{0};
  transport_.PostReceive(1, 16, {&place, 1}, TokenOf(9));
  EXPECT_EQ(Poll(), Operations());
  std::byte sent{1};
  EXPECT_TRUE(BoardOf(1).Send(0, 16, {&sent, 1}));
  const auto start = steady_clock::now();
  for (int i = 0; i < 1000; ++i) transport_.Wait(seconds(1));
  EXPECT_LT(steady_clock::now() - start, milliseconds(500));
  EXPECT_EQ(Poll(), Operations{9});
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
