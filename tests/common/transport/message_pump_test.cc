#include "common/transport/message_pump.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/running_clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/transport/in_memory_transport.h"
#include "tests/common/transport/tcp/tcp_loopback.h"

namespace starring {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A rank's transport and pump; the transport is destroyed first, as the pump requires.
struct Rank {
  explicit Rank(std::unique_ptr<Transport> t) : pump(t.get(), {}), transport(std::move(t)) {}
  MessagePump pump;
  std::unique_ptr<Transport> transport;
};

void RunRanks(int world_size, uint64_t seed, const std::function<void(int rank, Rank& it)>& run) {
  InMemoryNetwork network(world_size, seed);
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int r = 0; r < world_size; ++r) ranks.push_back(std::make_unique<Rank>(network.CreateTransport(r)));
  std::vector<std::thread> threads;
  for (int r = 0; r < world_size; ++r) threads.emplace_back([&, r] { run(r, *ranks[r]); });
  for (std::thread& thread : threads) thread.join();
}

std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string Text(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

absl::Status Await(MessagePump& pump, MessagePump::Token token, absl::Duration patience = absl::Seconds(20)) {
  return pump.PumpUntil([&] { return pump.IsComplete(token); }, DeadlineAfter(patience), "a test");
}

// Notes which of its operations have completed.
struct Notes final : Transport::Poster {
  void OnCompletion(uint64_t operation) override { completed.push_back(operation); }
  std::vector<uint64_t> completed;
};

TEST(MessagePump, CopiesAndMovesMessages) {
  RunRanks(2, 1, [](int rank, Rank& it) {
    std::string text = "hello";
    std::vector<std::byte> in_place(3);
    if (rank == 0) {
      const MessagePump::Token copied = it.pump.Send(1, ControlTag::kSum, Bytes(text));
      text = "other";  // the pump has its own copy
      const std::string kept = "abc";
      const MessagePump::Token from_here = it.pump.SendFrom(1, ControlTag::kState, Bytes(kept));
      CHECK_OK(Await(it.pump, copied));
      CHECK_OK(Await(it.pump, from_here));
      return;
    }
    const MessagePump::Token copied = it.pump.Receive(0, ControlTag::kSum, 5);
    const MessagePump::Token here = it.pump.ReceiveInto(0, ControlTag::kState, in_place);
    CHECK_OK(Await(it.pump, copied));
    CHECK_OK(Await(it.pump, here));
    EXPECT_EQ(Text(it.pump.Take(copied)), "hello");
    EXPECT_EQ(Text(in_place), "abc");
  });
}

// Both posters number their operations from 0, so a completion that reached the wrong one would pass for its own.
TEST(MessagePump, ACompletionGoesToThePosterOfTheOperation) {
  RunRanks(2, 2, [](int rank, Rank& it) {
    Notes notes;
    std::byte data{7}, got{0};  // outlive their operations
    if (rank == 0) {
      CHECK_OK(Await(it.pump, it.pump.Send(1, ControlTag::kSum, {&data, 1})));
      it.transport->PostSend(1, MessagePump::kFirstDataTag, {&data, 1}, {.poster = &notes, .operation = 0});
    } else {
      const MessagePump::Token token = it.pump.Receive(0, ControlTag::kSum, 1);
      EXPECT_EQ(token, 0u);
      it.transport->PostReceive(0, MessagePump::kFirstDataTag, {&got, 1}, {.poster = &notes, .operation = 0});
      CHECK_OK(Await(it.pump, token));
    }
    const auto done = [&] { return !notes.completed.empty(); };
    CHECK_OK(it.pump.PumpUntil(done, DeadlineAfter(absl::Seconds(20)), "a test"));
    EXPECT_THAT(notes.completed, ElementsAre(0));
    EXPECT_EQ(got, rank == 0 ? std::byte{0} : data);
  });
}

TEST(MessagePump, ADeadlineHasNoMessage) {
  InMemoryNetwork network(2, 3);
  Rank rank(network.CreateTransport(0));
  const MessagePump::Token token = rank.pump.Receive(1, ControlTag::kSum, 1);
  const absl::Status status = Await(rank.pump, token, absl::Milliseconds(30));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), IsEmpty());
  EXPECT_TRUE(rank.pump.failure().ok());  // the caller decides what it means
  const absl::StatusOr<std::string> missing = rank.pump.FindMissing();
  ASSERT_TRUE(missing.ok());
  EXPECT_THAT(*missing, HasSubstr("rank 1 does not answer"));
}

// Nothing ever arrives. Wait sleeps for the whole time, and everything is counted.
class SilentTransport final : public Transport {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 2; }
  int tag_max() const override { return 32767; }
  void PostSend(int, int, std::span<const std::byte>, Token) override {}
  void PostReceive(int, int, std::span<std::byte>, Token) override {}
  absl::Status Poll(std::vector<Token>&) override {
    ++polls;
    if (MessagePump::Clock::now() - begin > std::chrono::milliseconds(1)) ++late_polls;
    return absl::OkStatus();
  }
  void Wait(std::chrono::microseconds longest) override {
    if (waits == 0) polls_before = polls;
    ++waits;
    std::this_thread::sleep_for(std::max(longest, std::exchange(stop, std::chrono::microseconds(0))));
  }
  void Wake() override {}
  std::chrono::microseconds polls_for() const override { return polling; }
  std::optional<Received> TryReceive(int, std::span<std::byte>) override {
    ++looks;
    return std::nullopt;
  }
  const MessagePump::Clock::time_point begin = MessagePump::Clock::now();
  int polls = 0, polls_before = 0, late_polls = 0, waits = 0, looks = 0;
  std::chrono::microseconds polling{0};
  std::chrono::microseconds stop{0};  // of the process, in the first wait
};

// One poll and one look for a notice each time it wakes up: a rank that waits for a slow peer costs no core.
TEST(MessagePump, AWaitPollsForMomentsAndThenSleeps) {
  SilentTransport transport;
  MessagePump pump(&transport, {});
  const auto start = MessagePump::Clock::now();
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(pump.PumpUntil([] { return false; }, start + std::chrono::milliseconds(200), "")));
  EXPECT_GE(MessagePump::Clock::now() - start, std::chrono::milliseconds(200));
  EXPECT_GE(transport.polls_before, 64);
  EXPECT_GE(transport.waits, 1);
  EXPECT_LE(transport.waits, 20);
  EXPECT_LE(transport.polls - transport.polls_before, transport.waits + 1);
  EXPECT_GE(transport.looks, transport.waits - 1);
}

TEST(MessagePump, TimeInWhichTheProcessIsStoppedDoesNotCount) {
  SilentTransport transport;
  transport.stop = 2 * RunningClock::kStop;
  MessagePump pump(&transport, {});
  const auto start = MessagePump::Clock::now();
  const auto deadline = start + std::chrono::milliseconds(200);
  EXPECT_TRUE(absl::IsDeadlineExceeded(pump.PumpUntil([] { return false; }, deadline, "")));
  EXPECT_GE(MessagePump::Clock::now() - start, 2 * RunningClock::kStop + std::chrono::milliseconds(150));
  EXPECT_GE(transport.waits, 5);
}

// Where messages move only while it polls, it sleeps only if another thread takes the core, which on a busy machine may
// happen in most attempts.
TEST(MessagePump, AWaitPollsOnWhereMessagesMoveOnlyThen) {
  bool polls_on = false;
  for (int attempt = 0; attempt < 1000 && !polls_on; ++attempt) {
    SilentTransport transport;
    transport.polling = std::chrono::hours(1);
    MessagePump pump(&transport, {});
    const auto deadline = MessagePump::Clock::now() + std::chrono::milliseconds(3);
    EXPECT_TRUE(absl::IsDeadlineExceeded(pump.PumpUntil([] { return false; }, deadline, "")));
    polls_on = transport.waits == 0 && transport.late_polls >= 10;
  }
  EXPECT_TRUE(polls_on);
}

// But not for ever.
TEST(MessagePump, AWaitThatHasPolledLongEnoughSleeps) {
  int slept = 0;
  for (int attempt = 0; attempt < 20; ++attempt) {
    SilentTransport transport;
    transport.polling = std::chrono::milliseconds(1);
    MessagePump pump(&transport, {});
    const auto deadline = MessagePump::Clock::now() + std::chrono::milliseconds(20);
    EXPECT_TRUE(absl::IsDeadlineExceeded(pump.PumpUntil([] { return false; }, deadline, "")));
    slept += transport.waits > 0 ? 1 : 0;
  }
  // Not 20: a busy machine may take the core for the rest of an attempt.
  EXPECT_GE(slept, 15);
}

// An empty one, one of an unknown kind, and two that are no answer to a roll call.
TEST(MessagePump, NoticesThatCannotBeReadAreIgnored) {
  RunRanks(2, 4, [](int rank, Rank& it) {
    const std::byte one{1};
    if (rank == 0) {
      for (const std::string notice : {"", "?", "Hx", "H1 2"}) it.pump.Send(1, ControlTag::kNotice, Bytes(notice));
      CHECK_OK(Await(it.pump, it.pump.Send(1, ControlTag::kSum, {&one, 1})));
      CHECK_OK(Await(it.pump, it.pump.Receive(1, ControlTag::kSumResult, 1)));
      return;
    }
    CHECK_OK(Await(it.pump, it.pump.Receive(0, ControlTag::kSum, 1)));
    // The notices are here as well. A round takes one at most.
    for (int round = 0; round < 10; ++round) CHECK_OK(it.pump.Pump(MessagePump::Listening::kAlways));
    CHECK_OK(Await(it.pump, it.pump.Send(0, ControlTag::kSumResult, {&one, 1})));
  });
}

TEST(MessagePump, AnAbortReachesThePeerAndNothingWorksAfterIt) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {  // with some, the operation completes while Abort waits
    RunRanks(2, seed, [](int rank, Rank& it) {
      Notes notes;
      std::byte data{1};
      if (rank == 0) {
        it.transport->PostSend(1, MessagePump::kFirstDataTag, {&data, 1}, {.poster = &notes, .operation = 5});
        it.pump.Abort(absl::InternalError("enough"));
        EXPECT_EQ(it.pump.Pump().status(), absl::InternalError("enough"));
        EXPECT_THAT(notes.completed, IsEmpty());
        return;
      }
      const absl::Status status = Await(it.pump, it.pump.Receive(0, ControlTag::kSum, 1));
      EXPECT_EQ(status, absl::InternalError("rank 0 gave up: enough"));
      it.pump.Abort(absl::InternalError("later"));  // the first failure stays
      EXPECT_EQ(it.pump.failure(), status);
    });
  }
}

TEST(MessagePump, ARankThatReachesAllLeavesTheVerdictToOneThatDoesNot) {
  InMemoryNetwork network(4, 1);
  network.Lose({.from = 1, .to = 2});
  std::vector<std::string> said(4);
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int r = 0; r < 4; ++r) ranks.push_back(std::make_unique<Rank>(network.CreateTransport(r)));
  std::vector<std::thread> threads;
  for (int r = 0; r < 4; ++r) {
    threads.emplace_back([&, r] {
      MessagePump& pump = ranks[r]->pump;
      if (r != 3) pump.CountCall();  // it waits in an earlier call
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
      EXPECT_TRUE(absl::IsDeadlineExceeded(pump.PumpUntil([] { return false; }, deadline, "a test")));
      const absl::StatusOr<std::string> missing = pump.FindMissing();
      if (missing.ok()) pump.Abort(absl::DeadlineExceededError(*missing));
      said[r] = missing.ok() ? *missing : std::string(missing.status().message());
    });
  }
  for (std::thread& thread : threads) thread.join();
  // Neither hears the other: the question is lost, or the answer.
  for (int r = 0; r < 4; ++r) {
    EXPECT_THAT(said[r], testing::ContainsRegex("rank (1 gave up: rank 2|2 gave up: rank 1|1|2) does not answer")) << r;
  }
}

// mpirun passes on the exit code of the rank that ends first, so all ranks must end with the code of the cause.
TEST(MessagePump, AnAbortKeepsItsCode) {
  for (const absl::Status& why : {absl::InvalidArgumentError("a flag"), absl::DeadlineExceededError("too late"),
                                  absl::DataLossError(""), absl::UnavailableError("a peer")}) {
    RunRanks(2, 1, [&](int rank, Rank& it) {
      if (rank == 0) return it.pump.Abort(why);
      const absl::Status status = Await(it.pump, it.pump.Receive(0, ControlTag::kSum, 1));
      EXPECT_EQ(status, absl::Status(why.code(), "rank 0 gave up: " + std::string(why.message())));
    });
  }
}

// The notice of a rank that gives up, or that passes on that rank 1 has given up. The second byte is the code.
std::string VerdictNotice(NoticeKind kind, const std::string& text) {
  return std::string{static_cast<char>(kind), static_cast<char>(absl::StatusCode::kUnavailable)} + text;
}

// Rank 1 reaches rank 0 only. Where links are not lost one by one, rank 1 has told all, and nothing is passed on.
TEST(MessagePump, AVerdictIsPassedOnToTheRanksThatItsGiverDoesNotReach) {
  for (const bool loses_single_links : {true, false}) {
    InMemoryNetwork network(3, 1);
    network.set_loses_single_links(loses_single_links);
    std::vector<absl::Status> ends(3);
    std::vector<std::unique_ptr<Rank>> ranks;
    for (int r = 0; r < 3; ++r) ranks.push_back(std::make_unique<Rank>(network.CreateTransport(r)));
    const std::string notice = VerdictNotice(NoticeKind::kAbort, "rank 2 is lost");
    Notes notes;
    ranks[1]->transport->PostSend(0, Transport::kNoticeTag, Bytes(notice), {.poster = &notes, .operation = 0});
    std::vector<std::thread> threads;
    for (int r = 0; r < 3; ++r) {
      threads.emplace_back([&, r] {
        MessagePump& pump = ranks[r]->pump;
        const auto deadline = DeadlineAfter(loses_single_links ? absl::Seconds(20) : absl::Milliseconds(300));
        ends[r] = pump.PumpUntil([] { return false; }, deadline, "a test");
        if (!pump.failure().ok()) pump.Abort(ends[r]);
      });
    }
    for (std::thread& thread : threads) thread.join();
    const absl::Status verdict = absl::UnavailableError("rank 1 gave up: rank 2 is lost");
    const absl::Status untold = loses_single_links ? verdict : absl::DeadlineExceededError("");
    EXPECT_THAT(ends, ElementsAre(verdict, untold, untold));
  }
}

TEST(MessagePump, ARankThatLeavesOverTcpPassesTheVerdictOnBefore) {
  RankAndBarePeers net = ConnectBarePeers(2);
  Rank rank(std::move(net.rank));
  ASSERT_TRUE(SendAll(net.peers[0].notices,
                      WireMessage(Transport::kNoticeTag, VerdictNotice(NoticeKind::kAbort, "rank 2 is lost"))));
  const absl::Status status = Await(rank.pump, rank.pump.Receive(2, ControlTag::kSum, 1));
  EXPECT_EQ(status, absl::UnavailableError("rank 1 gave up: rank 2 is lost"));
  const std::string passed_on =
      WireMessage(Transport::kNoticeTag, VerdictNotice(NoticeKind::kVerdict, "rank 1 gave up: rank 2 is lost"));
  EXPECT_EQ(ReceiveSome(net.peers[1].notices, passed_on.size()), passed_on);
  rank.pump.Abort(status);
  rank.transport.reset();
  EXPECT_EQ(ReceiveSome(net.peers[1].notices, 1000), WireGoodbye());
  EXPECT_EQ(ReceiveSome(net.peers[0].notices, 1000), WireGoodbye());
}

// Rank 1 has ended by the verdict of rank 2, which does not reach this rank.
TEST(MessagePump, AVerdictComesBeforeTheEndOfTheRankThatPassesItOn) {
  RankAndBarePeers net = ConnectBarePeers(2, {.loss_grace_ms = 20'000});
  Rank rank(std::move(net.rank));
  ASSERT_TRUE(SendAll(net.peers[0].messages, WireGoodbye()));
  ASSERT_TRUE(AwaitDelivery(net.peers[0].messages));
  const MessagePump::Token token = rank.pump.Receive(1, ControlTag::kSum, 1);
  EXPECT_EQ(Await(rank.pump, token, absl::Milliseconds(10)), absl::DeadlineExceededError(""));
  const std::string text = "rank 2 gave up: rank 0 is lost";
  ASSERT_TRUE(
      SendAll(net.peers[0].notices, WireMessage(Transport::kNoticeTag, VerdictNotice(NoticeKind::kVerdict, text))));
  EXPECT_EQ(Await(rank.pump, token), absl::UnavailableError(text));
}

// A peer may send any bytes.
TEST(MessagePump, AnAbortWithoutAKnownCodeIsAMissingPeer) {
  for (const std::string& notice : {std::string("A"), std::string("A\0x", 3), std::string("A\xffx")}) {
    RunRanks(2, 1, [&](int rank, Rank& it) {
      if (rank == 0) {
        Notes notes;
        it.transport->PostSend(1, static_cast<int>(ControlTag::kNotice), std::as_bytes(std::span(notice)),
                               {.poster = &notes, .operation = 0});
        const auto has_left = [&] { return !notes.completed.empty(); };
        CHECK_OK(it.pump.PumpUntil(has_left, DeadlineAfter(absl::Seconds(20)), "a test"));
        return;
      }
      const absl::Status status = Await(it.pump, it.pump.Receive(0, ControlTag::kSum, 1));
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    });
  }
}

}  // namespace
}  // namespace starring
