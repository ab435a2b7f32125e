#include "common/transport/tcp/tcp_transport.h"

#include <sys/ioctl.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/transport/tcp/tcp_loopback.h"
#include "tests/common/transport/tcp/tls_loopback.h"

namespace starring {
namespace {

// The same tests run with encrypted connections, as another target.
std::vector<std::unique_ptr<TcpTransport>> Ranks(int world_size, const TcpTransport::Options& base = {}) {
  static const std::shared_ptr<const TlsContext> tls =
      getenv("STARRING_TEST_TLS") == nullptr ? nullptr : FreshTlsContext();
  return ConnectedRanks(world_size, base, tls.get());
}

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using Clock = std::chrono::steady_clock;
using Token = Transport::Token;

constexpr int kTag = 16;

std::string Text(const absl::Status& status) { return std::string(status.message()); }
std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

// Polls one transport and remembers what has completed.
class Poller {
 public:
  explicit Poller(Transport* transport) : transport_(*transport) {}

  absl::Status Poll() {
    std::vector<Token> completed;
    status_ = transport_.Poll(completed);
    for (const Token& token : completed) EXPECT_TRUE(done_.insert(token.operation).second) << token.operation;
    return status_;
  }
  bool IsDone(uint64_t operation) const { return done_.contains(operation); }
  size_t done_count() const { return done_.size(); }

  // Polls until the operation is over, or the transport fails, or half a minute is over.
  bool Await(uint64_t operation) {
    return Until([&] { return IsDone(operation) || !status_.ok(); }, [&] { (void)Poll(); }) && IsDone(operation);
  }
  absl::Status AwaitError() {
    Until([&] { return !status_.ok(); }, [&] { (void)Poll(); });
    return status_;
  }

 private:
  Transport& transport_;
  std::set<uint64_t> done_;
  absl::Status status_;
};

void OnThreads(std::vector<std::unique_ptr<TcpTransport>>& ranks, const std::function<void(TcpTransport&)>& run) {
  std::vector<std::thread> threads;
  for (auto& rank : ranks) threads.emplace_back([&run, &rank] { run(*rank); });
  for (std::thread& thread : threads) thread.join();
}

class TcpTransportRanks : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Ranks, TcpTransportRanks, testing::Values(1, 2, 3, 8));

size_t LengthOf(int from, int to, int tag, int index) {
  std::mt19937_64 random(static_cast<uint64_t>(from) << 40 | static_cast<uint64_t>(to) << 20 | tag << 8 | index);
  return index % 5 == 0 ? 0 : random() % (index % 5 == 1 ? 200'000 : 3000);
}

// Every rank sends to every other one with three tags, and posts its receives late, early and in another order.
TEST_P(TcpTransportRanks, MessagesOfATagArriveInOrder) {
  constexpr int kTags = 3, kMessages = 15;
  const uint64_t seed = 17 + static_cast<uint64_t>(GetParam());
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  auto ranks = Ranks(GetParam(), {.unexpected_bytes_max = 64 << 20});
  OnThreads(ranks, [&](TcpTransport& transport) {
    const int rank = transport.rank();
    std::mt19937_64 random(seed + rank);
    Poller poller(&transport);
    struct Receive {
      int peer, tag, index;
      std::vector<std::byte> data;
    };
    std::vector<std::vector<std::byte>> sent;
    std::vector<Receive> receives;
    for (int peer = 0; peer < transport.world_size(); ++peer) {
      for (int tag = 0; tag < kTags && peer != rank; ++tag) {
        for (int i = 0; i < kMessages; ++i) receives.push_back({peer, tag, i, {}});
      }
    }
    // Tags and peers in any order, messages of one tag of one peer in theirs.
    std::shuffle(receives.begin(), receives.end(), random);
    std::stable_sort(receives.begin(), receives.end(),
                     [](const Receive& a, const Receive& b) { return a.index < b.index; });
    uint64_t operation = 0;
    for (int i = 0; i < kMessages; ++i) {
      for (int peer = 0; peer < transport.world_size(); ++peer) {
        for (int tag = 0; tag < kTags && peer != rank; ++tag) {
          sent.push_back(Pattern(LengthOf(rank, peer, tag, i), static_cast<uint64_t>(rank * 1000 + tag * 100 + i)));
          transport.PostSend(peer, kTag + tag, sent.back(), {.operation = operation++});
        }
      }
      if (random() % 2 == 0) {
        EXPECT_EQ(poller.Poll(), absl::OkStatus());
      }
    }
    for (Receive& one : receives) {
      one.data.resize(LengthOf(one.peer, rank, one.tag, one.index));
      transport.PostReceive(one.peer, kTag + one.tag, one.data, {.operation = operation++});
      if (random() % 4 == 0) {
        EXPECT_EQ(poller.Poll(), absl::OkStatus());
      }
    }
    EXPECT_TRUE(
        Until([&] { return poller.done_count() == operation; }, [&] { EXPECT_EQ(poller.Poll(), absl::OkStatus()); }));
    for (const Receive& one : receives) {
      const uint64_t pattern = static_cast<uint64_t>(one.peer * 1000 + one.tag * 100 + one.index);
      EXPECT_EQ(one.data, Pattern(one.data.size(), pattern)) << one.peer << " " << one.tag << " " << one.index;
    }
  });
}

TEST(TcpTransportTest, ARankAloneHasNothingToDo) {
  auto ranks = Ranks(1);
  Poller poller(ranks[0].get());
  EXPECT_EQ(poller.Poll(), absl::OkStatus());
  ranks[0]->Wait(milliseconds(1));
  std::vector<std::byte> notice(kAbortNoticeBytesMax);
  EXPECT_FALSE(ranks[0]->TryReceive(Transport::kNoticeTag, notice).has_value());
}

TEST(TcpTransportTest, ALargeMessageGoesToItsReceive) {
  auto ranks = Ranks(2);
  Poller a(ranks[0].get()), b(ranks[1].get());
  const std::vector<std::byte> data = Pattern(9 << 20, 1);  // far above every buffer, and above what is kept
  std::vector<std::byte> got(data.size());
  ranks[1]->PostReceive(0, kTag, got, {.operation = 1});
  ranks[0]->PostSend(1, kTag, data, {.operation = 1});
  EXPECT_TRUE(Until([&] { return a.IsDone(1) && b.IsDone(1); },
                    [&] {
                      ASSERT_EQ(a.Poll(), absl::OkStatus());
                      ASSERT_EQ(b.Poll(), absl::OkStatus());
                    }));
  EXPECT_EQ(got, data);
}

// The receive is posted when a part of the message has arrived: that part is copied, the rest goes there itself.
TEST(TcpTransportTest, AMessageThatIsArrivingFindsItsReceive) {
  auto ranks = Ranks(2, {.unexpected_bytes_max = 16 << 20});
  Poller a(ranks[0].get()), b(ranks[1].get());
  const std::vector<std::byte> data = Pattern(9 << 20, 2);
  std::vector<std::byte> got(data.size());
  ranks[0]->PostSend(1, kTag, data, {.operation = 1});
  ranks[1]->Wait(seconds(5));
  ASSERT_EQ(b.Poll(), absl::OkStatus());  // a megabyte at most
  ranks[1]->PostReceive(0, kTag, got, {.operation = 1});
  EXPECT_FALSE(b.IsDone(1));
  EXPECT_TRUE(Until([&] { return a.IsDone(1) && b.IsDone(1); },
                    [&] {
                      ASSERT_EQ(a.Poll(), absl::OkStatus());
                      ASSERT_EQ(b.Poll(), absl::OkStatus());
                    }));
  EXPECT_EQ(got, data);
}

// A receive that is posted before its message, and one that is posted after it.
TEST(TcpTransportTest, AMessageMayBeShorterThanAReceiveThatAllowsIt) {
  auto ranks = Ranks(2);
  Poller a(ranks[0].get()), b(ranks[1].get());
  const std::string text = "hello";
  std::string early(8, '.'), late(8, '.'), none(8, '.');
  int64_t early_bytes = -1, late_bytes = -1, no_bytes = -1;
  const auto post = [&](std::string& to, int64_t* bytes, uint64_t operation) {
    ranks[1]->PostReceive(0, kTag, std::as_writable_bytes(std::span(to)), {.operation = operation, .bytes = bytes});
  };
  post(early, &early_bytes, 1);
  for (uint64_t operation = 1; operation <= 2; ++operation) {
    ranks[0]->PostSend(1, kTag, Bytes(text), {.operation = operation});
  }
  ranks[0]->PostSend(1, kTag, {}, {.operation = 3});
  ASSERT_TRUE(a.Await(3));
  ASSERT_TRUE(b.Await(1));
  ranks[1]->Wait(milliseconds(50));
  ASSERT_EQ(b.Poll(), absl::OkStatus());
  post(late, &late_bytes, 2);
  post(none, &no_bytes, 3);
  ASSERT_TRUE(b.Await(2));
  ASSERT_TRUE(b.Await(3));
  EXPECT_EQ(early, "hello...");
  EXPECT_EQ(late, "hello...");
  EXPECT_EQ(none, "........");
  EXPECT_EQ(early_bytes, 5);
  EXPECT_EQ(late_bytes, 5);
  EXPECT_EQ(no_bytes, 0);
}

TEST(TcpTransportTest, AMessageLongerThanItsReceiveIsAnError) {
  auto ranks = Ranks(2);
  Poller b(ranks[1].get());
  const std::string text = "longer";
  std::string got(5, '.');
  int64_t bytes = 0;
  ranks[1]->PostReceive(0, kTag, std::as_writable_bytes(std::span(got)), {.operation = 1, .bytes = &bytes});
  ranks[0]->PostSend(1, kTag, Bytes(text), {.operation = 1});
  EXPECT_THAT(Text(b.AwaitError()),
              AllOf(HasSubstr("has sent 6 bytes with tag 16"), HasSubstr("where this rank expects at most 5")));
}

TEST(TcpTransportTest, PollReturnsWhatWasCompleteWhenPosted) {
  auto ranks = Ranks(2);
  const std::string text = "hello";
  ranks[0]->PostSend(1, kTag, Bytes(text), {.operation = 7});
  std::vector<Token> completed;
  ASSERT_EQ(ranks[0]->Poll(completed), absl::OkStatus());
  ASSERT_EQ(completed.size(), 1u);
  EXPECT_EQ(completed[0].operation, 7u);
}

// One Poll serves all peers that have sent something, in equal parts.
TEST(TcpTransportTest, OnePollServesEveryPeer) {
  RankAndBarePeers it = ConnectBarePeers(4);
  const std::string data(32 << 10, 'x');  // fits the smallest window
  std::vector<std::string> got(4, std::string(data.size(), '.'));
  for (int i = 0; i < 4; ++i) {
    it.rank->PostReceive(i + 1, kTag, std::as_writable_bytes(std::span(got[i])), {.operation = 1});
    ASSERT_TRUE(SendAll(it.peers[i].messages, WireMessage(kTag, data)));
  }
  for (const BarePeer& peer : it.peers) ASSERT_TRUE(AwaitDelivery(peer.messages));
  std::vector<Token> completed;
  ASSERT_EQ(it.rank->Poll(completed), absl::OkStatus());
  for (int i = 0; i < 4; ++i) EXPECT_EQ(got[i].front(), 'x') << i;
}

// More peers than one Poll serves have their turn in the next one: a Submit of the trainer waits for a Poll.
TEST(TcpTransportTest, OnePollServesSixteenStreams) {
  constexpr int kPeers = 17;
  RankAndBarePeers it = ConnectBarePeers(kPeers);
  std::string got(kPeers, '.');
  for (int i = 0; i < kPeers; ++i) {
    it.rank->PostReceive(i + 1, kTag, std::as_writable_bytes(std::span(&got[i], 1)), {.operation = 1});
    ASSERT_TRUE(SendAll(it.peers[i].messages, WireMessage(kTag, "x")));
  }
  for (const BarePeer& peer : it.peers) ASSERT_TRUE(AwaitDelivery(peer.messages));
  std::vector<Token> completed;
  ASSERT_EQ(it.rank->Poll(completed), absl::OkStatus());
  EXPECT_EQ(completed.size(), 16u);
  ASSERT_EQ(it.rank->Poll(completed), absl::OkStatus());
  EXPECT_EQ(completed.size(), 17u);
  EXPECT_EQ(got, std::string(kPeers, 'x'));
}

TEST(TcpTransportTest, OnePollIsBounded) {
  RankAndBarePeers it = ConnectBarePeers(1, {.unexpected_bytes_max = 64 << 20});
  std::string got(8 << 20, '.');
  it.rank->PostReceive(1, kTag, std::as_writable_bytes(std::span(got)), {.operation = 1});
  std::jthread sender(
      [&] { EXPECT_TRUE(SendAll(it.peers[0].messages, WireMessage(kTag, std::string(8 << 20, 'x')))); });
  Poller poller(it.rank.get());
  size_t before = 0;
  ASSERT_TRUE(Until([&] { return poller.IsDone(1); },
                    [&] {
                      ASSERT_EQ(poller.Poll(), absl::OkStatus());
                      const size_t after = std::min(got.find('.'), got.size());
                      EXPECT_LE(after - before, static_cast<size_t>(2 * kTcpPollBytesMax));
                      before = after;
                    }));
}

// --- Wait and Wake ---

TEST(TcpTransportTest, WaitEndsWhenAMessageArrives) {
  RankAndBarePeers it = ConnectBarePeers(1);
  std::jthread sender([&] {
    std::this_thread::sleep_for(milliseconds(50));
    EXPECT_TRUE(SendAll(it.peers[0].messages, WireMessage(kTag, "x")));
  });
  const Clock::time_point start = Clock::now();
  it.rank->Wait(seconds(30));
  EXPECT_LT(Clock::now() - start, seconds(20));
}

TEST(TcpTransportTest, WaitEndsAfterItsTime) {
  RankAndBarePeers it = ConnectBarePeers(1);
  const Clock::time_point start = Clock::now();
  it.rank->Wait(milliseconds(30));
  EXPECT_GE(Clock::now() - start, milliseconds(29));
  EXPECT_LT(Clock::now() - start, seconds(20));
}

TEST(TcpTransportTest, WakeEndsAWaitOrTheNextOne) {
  RankAndBarePeers it = ConnectBarePeers(1);
  const Clock::time_point start = Clock::now();
  it.rank->Wake();
  it.rank->Wait(seconds(30));
  std::thread waker([&] {
    std::this_thread::sleep_for(milliseconds(50));
    it.rank->Wake();
  });
  it.rank->Wait(seconds(30));
  EXPECT_LT(Clock::now() - start, seconds(20));
  waker.join();
  const Clock::time_point again = Clock::now();
  it.rank->Wait(milliseconds(30));  // a Wake counts once
  EXPECT_GE(Clock::now() - again, milliseconds(29));
}

TEST(TcpTransportTest, WaitReturnsAtOnceWhilePollHasSomething) {
  RankAndBarePeers it = ConnectBarePeers(1);
  const std::string text = "hello";
  it.rank->PostSend(1, kTag, Bytes(text), {.operation = 1});
  const Clock::time_point start = Clock::now();
  it.rank->Wait(seconds(30));
  EXPECT_LT(Clock::now() - start, seconds(20));
}

// Nothing arrives that would end the wait: the trainer posts, and the background thread is to poll.
TEST(TcpTransportTest, WaitEndsWhenAnotherThreadPostsWhatCompletesAtOnce) {
  const std::string text = "hello";
  std::string got(text.size(), '.');
  for (const bool sends : {true, false}) {
    RankAndBarePeers it = ConnectBarePeers(1);
    Poller poller(it.rank.get());
    ASSERT_TRUE(SendAll(it.peers[0].messages, WireMessage(kTag, text)));
    ASSERT_TRUE(AwaitDelivery(it.peers[0].messages));
    ASSERT_EQ(poller.Poll(), absl::OkStatus());  // it is kept
    const Clock::time_point start = Clock::now();
    std::thread waiter([&] { it.rank->Wait(seconds(30)); });
    std::this_thread::sleep_for(milliseconds(50));  // it sleeps now, or does not begin to
    if (sends) {
      it.rank->PostSend(1, kTag, Bytes(text), {.operation = 1});
    } else {
      it.rank->PostReceive(1, kTag, std::as_writable_bytes(std::span(got)), {.operation = 1});
    }
    waiter.join();
    EXPECT_LT(Clock::now() - start, seconds(20));
    EXPECT_TRUE(poller.Await(1));
  }
  EXPECT_EQ(got, text);
}

// The background thread of an exchange waits while the trainer posts and polls.
TEST(TcpTransportTest, OneThreadMayWaitWhileAnotherPolls) {
  auto ranks = Ranks(2);
  std::atomic<bool> stop = false;
  std::vector<std::thread> waiters;
  for (auto& rank : ranks) {
    waiters.emplace_back([&] {
      while (!stop) {
        rank->Wait(milliseconds(20));
        std::this_thread::sleep_for(std::chrono::microseconds(50));  // the cores are for those that poll
      }
    });
  }
  OnThreads(ranks, [](TcpTransport& transport) {
    Poller poller(&transport);
    const int peer = 1 - transport.rank();
    for (uint64_t i = 0; i < 100; ++i) {
      const std::vector<std::byte> data = Pattern(5000, i);
      std::vector<std::byte> got(data.size());
      transport.PostReceive(peer, kTag, got, {.operation = 2 * i});
      transport.PostSend(peer, kTag, data, {.operation = 2 * i + 1});
      ASSERT_TRUE(poller.Await(2 * i) && poller.Await(2 * i + 1));
      EXPECT_EQ(got, data);
    }
  });
  stop = true;
  for (auto& rank : ranks) rank->Wake();
  for (std::thread& waiter : waiters) waiter.join();
}

TEST(TcpTransportTest, AWaitCostsNoCore) {
  RankAndBarePeers it = ConnectBarePeers(1);
  const auto cpu_ns = [] {
    timespec time = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * 1'000'000'000 + time.tv_nsec;
  };
  Poller poller(it.rank.get());
  const Clock::time_point end = Clock::now() + milliseconds(400);
  const int64_t before = cpu_ns();
  while (Clock::now() < end) {
    ASSERT_EQ(poller.Poll(), absl::OkStatus());
    it.rank->Wait(milliseconds(20));
  }
  EXPECT_LT(cpu_ns() - before, 40'000'000);  // a tenth of a core
}

// --- Notices ---

std::optional<std::string> TakeNotice(Transport& transport, int* peer = nullptr) {
  std::string data(kAbortNoticeBytesMax, '\0');
  const auto got = transport.TryReceive(Transport::kNoticeTag, std::as_writable_bytes(std::span(data)));
  if (!got.has_value()) return std::nullopt;
  if (peer != nullptr) *peer = got->peer;
  return data.substr(0, static_cast<size_t>(got->bytes));
}

TEST(TcpTransportTest, NoticesNeedNoReceive) {
  auto ranks = Ranks(3);
  Poller poller(ranks[0].get());
  const std::string hello = "hello", empty;
  ranks[2]->PostSend(0, Transport::kNoticeTag, Bytes(hello), {.operation = 1});
  ranks[2]->PostSend(0, Transport::kNoticeTag, Bytes(empty), {.operation = 2});
  std::vector<std::string> got;
  ASSERT_TRUE(Until([&] { return got.size() == 2; },
                    [&] {
                      ASSERT_EQ(poller.Poll(), absl::OkStatus());
                      int peer = -1;
                      if (auto notice = TakeNotice(*ranks[0], &peer); notice.has_value()) {
                        EXPECT_EQ(peer, 2);
                        got.push_back(*notice);
                      }
                    }));
  EXPECT_EQ(got[0], "hello");
  EXPECT_EQ(got[1], "");
}

// The peer reads no messages, and still learns what this rank has to say.
TEST(TcpTransportTest, ANoticeDoesNotWaitForMessages) {
  RankAndBarePeers it = ConnectBarePeers(1);
  const std::vector<std::byte> much(64 << 20);
  it.rank->PostSend(1, kTag, much, {.operation = 1});
  const std::string text = "stuck";
  it.rank->PostSend(1, Transport::kNoticeTag, Bytes(text), {.operation = 2});
  EXPECT_EQ(ReceiveSome(it.peers[0].notices, 21), WireMessage(Transport::kNoticeTag, text));
  Poller poller(it.rank.get());
  EXPECT_TRUE(poller.Await(2));
  EXPECT_FALSE(poller.IsDone(1));
}

// Neither does a rank that is stopped, or asks and asks without reading the answers, fill this rank's memory.
TEST(TcpTransportTest, FewNoticesWaitForARankThatTakesNone) {
  const std::string text(kAbortNoticeBytesMax, 'x');
  RankAndBarePeers it = ConnectBarePeers(1);
  Poller poller(it.rank.get());
  constexpr size_t kCount = 20'000;  // far more than the kernel's buffers hold
  size_t waiting_most = 0;
  for (uint64_t i = 0; i < kCount; ++i) {
    it.rank->PostSend(1, Transport::kNoticeTag, Bytes(text), {.operation = i});
    if (i % 64 == 0) {
      ASSERT_EQ(poller.Poll(), absl::OkStatus());
      waiting_most = std::max(waiting_most, i + 1 - poller.done_count());
    }
  }
  EXPECT_LE(waiting_most, kTcpNoticesUnsentMax);
  EXPECT_GT(waiting_most, 0u);  // some do wait: the test tests something. At the end the kernel may have taken them
}

// A process that was stopped finds many. They wait in the kernel, and none is lost.
TEST(TcpTransportTest, ManyNoticesAreKeptByTheKernel) {
  RankAndBarePeers it = ConnectBarePeers(1);
  constexpr int kCount = 5000;
  std::jthread sender([&] {
    for (int i = 0; i < kCount; ++i) {
      ASSERT_TRUE(SendAll(it.peers[0].notices, WireMessage(Transport::kNoticeTag, std::to_string(i))));
    }
  });
  Poller poller(it.rank.get());
  for (int i = 0; i < 2000; ++i) ASSERT_EQ(poller.Poll(), absl::OkStatus());
  int kept = 0;
  while (TakeNotice(*it.rank).has_value()) ++kept;
  // One more portion may come with the one that closes the valve.
  EXPECT_LE(kept, kTcpNoticesKeptMax + 2 * 4096 / 17);
  int next = kept;
  ASSERT_TRUE(Until([&] { return next == kCount; },
                    [&] {
                      ASSERT_EQ(poller.Poll(), absl::OkStatus());
                      const auto notice = TakeNotice(*it.rank);
                      if (!notice.has_value()) return;
                      ASSERT_EQ(*notice, std::to_string(next++));
                    }));
}

TEST(TcpTransportTest, RefusesWhatIsNoNotice) {
  for (const std::string& bytes :
       {WireMessage(kTag, "x"), WireMessage(0, std::string(kAbortNoticeBytesMax + 1, 'x'))}) {
    RankAndBarePeers it = ConnectBarePeers(1);
    ASSERT_TRUE(SendAll(it.peers[0].notices, bytes));
    const absl::Status status = Poller(it.rank.get()).AwaitError();
    EXPECT_TRUE(absl::IsInternal(status)) << status;
    EXPECT_THAT(Text(status), AllOf(StartsWith(it.peers[0].name), HasSubstr("connection for notices")));
  }
}

// --- How long it waits ---

// A week for an exchange is no reason to look at a dead host for a week, and a second none to give up a busy one.
TEST(TcpTransportTest, AConnectionIsLostAfterTheExchangesDeadlineWithinBounds) {
  EXPECT_EQ(TcpSilenceMs(absl::Seconds(1)), 20'000);
  EXPECT_EQ(TcpSilenceMs(absl::Seconds(60)), 60'000);
  EXPECT_EQ(TcpSilenceMs(absl::InfiniteDuration()), 15 * 60 * 1000);
}

// Each delays the end of a job that has failed.
TEST(TcpTransportTest, ALossAndAnEndWaitShortly) {
  const TcpTransport::Options options;
  EXPECT_EQ(options.loss_grace_ms, 250);
  EXPECT_EQ(options.last_notice_ms, 1000);
  EXPECT_EQ(options.last_words_ms, 500);
}

// --- Actions that are forbidden to a peer ---

TEST(TcpTransportTest, AWrongLengthIsAnError) {
  for (const bool is_posted_first : {true, false}) {
    RankAndBarePeers it = ConnectBarePeers(1);
    Poller poller(it.rank.get());
    std::vector<std::byte> data(100);
    if (is_posted_first) it.rank->PostReceive(1, kTag, data, {.operation = 1});
    ASSERT_TRUE(SendAll(it.peers[0].messages, WireMessage(kTag, std::string(99, 'x'))));
    if (!is_posted_first) {
      it.rank->Wait(seconds(10));
      ASSERT_EQ(poller.Poll(), absl::OkStatus());
      it.rank->PostReceive(1, kTag, data, {.operation = 1});
    }
    const absl::Status status = poller.AwaitError();
    EXPECT_TRUE(absl::IsInternal(status)) << status;
    EXPECT_THAT(Text(status),
                AllOf(StartsWith(it.peers[0].name), HasSubstr("99 bytes with tag 16"), HasSubstr("expects 100")));
    EXPECT_FALSE(poller.IsDone(1));
    EXPECT_EQ(poller.Poll(), status);  // it stays
  }
}

TEST(TcpTransportTest, KeepsWhatACorrectPeerSendsAndNoMore) {
  constexpr int64_t kMax = 100'000;
  for (const size_t size : {size_t{0}, size_t{1}, size_t{9000}}) {
    RankAndBarePeers it = ConnectBarePeers(1, {.unexpected_bytes_max = kMax});
    Poller poller(it.rank.get());
    const int64_t fits = kMax / (static_cast<int64_t>(size) + kTcpKeptMessageBytes);
    std::string bytes;
    for (int64_t i = 0; i < fits; ++i) bytes += WireMessage(kTag, std::string(size, 'a'));
    ASSERT_TRUE(SendAll(it.peers[0].messages, bytes));
    for (int i = 0; i < 50; ++i) {
      it.rank->Wait(milliseconds(1));
      ASSERT_EQ(poller.Poll(), absl::OkStatus());
    }
    // A message that is taken makes room for another one.
    std::vector<std::byte> data(size);
    it.rank->PostReceive(1, kTag, data, {.operation = 1});
    ASSERT_TRUE(poller.Await(1));
    ASSERT_TRUE(SendAll(it.peers[0].messages, WireMessage(kTag, std::string(size, 'a'))));
    for (int i = 0; i < 20; ++i) {
      it.rank->Wait(milliseconds(1));
      ASSERT_EQ(poller.Poll(), absl::OkStatus());
    }
    ASSERT_TRUE(SendAll(it.peers[0].messages, WireMessage(kTag + 1, std::string(size, 'b'))));
    const absl::Status status = poller.AwaitError();
    EXPECT_TRUE(absl::IsInternal(status)) << status;
    EXPECT_THAT(Text(status), AllOf(StartsWith(it.peers[0].name), HasSubstr("at most 100000 under way"),
                                    HasSubstr(absl::StrCat("has sent ", fits * (size + kTcpKeptMessageBytes))),
                                    HasSubstr(absl::StrCat("message of ", size, " bytes with tag 17"))));
  }
}

// The header alone decides: nothing is allocated for a length that no rank could send.
TEST(TcpTransportTest, AnAbsurdLengthIsRefusedByItsHeader) {
  RankAndBarePeers it = ConnectBarePeers(1);
  const tcp_wire::MessageHeader header = {.tag = kTag, .length = uint64_t{1} << 62};
  ASSERT_TRUE(SendAll(it.peers[0].messages, std::string(reinterpret_cast<const char*>(&header), sizeof(header))));
  EXPECT_THAT(Text(Poller(it.rank.get()).AwaitError()), HasSubstr("message of 4611686018427387904 bytes"));
}

TEST(TcpTransportTest, ACorrectPeersBoundGrowsWithTheRanks) {
  const int64_t chunk = 128 << 10;
  EXPECT_GE(TcpUnexpectedBytesMax(2), 12 * chunk + 2 * kTransferSegmentBytes);
  EXPECT_GE(TcpUnexpectedBytesMax(64), 2 * 2 * 63 * chunk + 2 * kTransferSegmentBytes);
  EXPECT_LE(TcpUnexpectedBytesMax(2), 8 << 20);
}

// --- Peers that end ---

TEST(TcpTransportTest, AClosedConnectionNamesRankAndAddress) {
  for (const bool resets : {false, true}) {
    RankAndBarePeers it = ConnectBarePeers(2);
    for (Socket* const socket : {&it.peers[1].messages, &it.peers[1].notices}) {
      if (resets) {
        Reset(std::move(*socket));
      } else {
        *socket = Socket();
      }
    }
    const absl::Status status = Poller(it.rank.get()).AwaitError();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(Text(status), AllOf(StartsWith(it.peers[1].name),
                                    HasSubstr(resets ? "cannot be reached any more" : "has closed its connection")));
  }
}

// Although nothing more is to be received: a rank whose own sends fail must learn why.
TEST(TcpTransportTest, SendingToAClosedConnectionIsAnError) {
  RankAndBarePeers it = ConnectBarePeers(1);
  Reset(std::move(it.peers[0].messages));
  const std::vector<std::byte> data = Pattern(1 << 20, 1);
  for (uint64_t i = 0; i < 5; ++i) {
    it.rank->PostSend(1, kTag, data, {.operation = i});
    std::this_thread::sleep_for(milliseconds(2));
  }
  const absl::Status status = Poller(it.rank.get()).AwaitError();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(Text(status), StartsWith(it.peers[0].name));
}

// A rank that gives up says why and ends; its reason must be heard before its end.
TEST(TcpTransportTest, TheLastNoticeComesBeforeTheLoss) {
  RankAndBarePeers it = ConnectBarePeers(1, {.loss_grace_ms = 20'000});
  it.peers[0].messages = Socket();
  Poller poller(it.rank.get());
  for (int i = 0; i < 5; ++i) ASSERT_EQ(poller.Poll(), absl::OkStatus());
  ASSERT_TRUE(SendAll(it.peers[0].notices, WireMessage(Transport::kNoticeTag, "because")));
  it.peers[0].notices = Socket();
  std::optional<std::string> notice;
  ASSERT_TRUE(Until([&] { return notice.has_value(); },
                    [&] {
                      ASSERT_EQ(poller.Poll(), absl::OkStatus());
                      notice = TakeNotice(*it.rank);
                    }));
  EXPECT_EQ(*notice, "because");
  EXPECT_TRUE(absl::IsUnavailable(poller.AwaitError()));
}

// A verdict, for instance, after which the peer ends: the second part is asked for when the first has been read.
TEST(TcpTransportTest, WhatArrivedBeforeALossCountsFirst) {
  RankAndBarePeers it = ConnectBarePeers(1);
  std::string first(4, '.'), second(2, '.');
  it.rank->PostReceive(1, kTag, std::as_writable_bytes(std::span(first)), {.operation = 1});
  ASSERT_TRUE(SendAll(it.peers[0].messages, WireMessage(kTag, "size") + WireMessage(kTag + 1, "no")));
  it.peers.clear();
  Poller poller(it.rank.get());
  ASSERT_TRUE(poller.Await(1));
  EXPECT_EQ(first, "size");
  it.rank->PostReceive(1, kTag + 1, std::as_writable_bytes(std::span(second)), {.operation = 2});
  ASSERT_TRUE(poller.Await(2));
  EXPECT_EQ(second, "no");
  EXPECT_TRUE(absl::IsUnavailable(poller.AwaitError()));
}

// Ranks that notice the first loss end too, and must not be named for it. Rank 1 is the later one here.
TEST(TcpTransportTest, TheEarliestLossIsNamed) {
  RankAndBarePeers it = ConnectBarePeers(2, {.last_notice_ms = 20'000});
  Poller poller(it.rank.get());
  ASSERT_TRUE(SendAll(it.peers[0].notices, WireMessage(Transport::kNoticeTag, "I am about to end")));
  it.rank->Wait(seconds(10));  // the notice, which is not taken, holds the errors back
  ASSERT_EQ(poller.Poll(), absl::OkStatus());
  for (const int peer : {1, 0}) {
    it.peers[peer].messages = Socket();
    it.peers[peer].notices = Socket();
    std::this_thread::sleep_for(milliseconds(20));  // their ends must not arrive in one poll
    ASSERT_EQ(poller.Poll(), absl::OkStatus());
  }
  EXPECT_TRUE(TakeNotice(*it.rank).has_value());
  EXPECT_THAT(Text(poller.AwaitError()), StartsWith(it.peers[1].name));
}

TEST(TcpTransportTest, OneConnectionThatEndsIsALossAfterAGrace) {
  for (const bool notices : {false, true}) {
    RankAndBarePeers it = ConnectBarePeers(1);
    (notices ? it.peers[0].notices : it.peers[0].messages) = Socket();
    const Clock::time_point start = Clock::now();
    EXPECT_TRUE(absl::IsUnavailable(Poller(it.rank.get()).AwaitError()));
    EXPECT_GE(Clock::now() - start, milliseconds(kTcpLossGraceMs - 50));
  }
}

TEST(TcpTransportTest, ANoticeThatNobodyTakesDoesNotHideALoss) {
  RankAndBarePeers it = ConnectBarePeers(1);
  ASSERT_TRUE(SendAll(it.peers[0].notices, WireMessage(Transport::kNoticeTag, "because")));
  it.peers.clear();
  EXPECT_TRUE(absl::IsUnavailable(Poller(it.rank.get()).AwaitError()));
}

TEST(TcpTransportTest, ARankThatLeavesInOrderIsNoError) {
  auto ranks = Ranks(3);
  const std::string text = "last";
  ranks[2]->PostSend(0, kTag, Bytes(text), {.operation = 1});
  ASSERT_TRUE(Poller(ranks[2].get()).Await(1));
  ranks[2].reset();
  Poller poller(ranks[0].get());
  const Clock::time_point end = Clock::now() + milliseconds(2 * kTcpLossGraceMs);
  while (Clock::now() < end) {
    ASSERT_EQ(poller.Poll(), absl::OkStatus());
    ranks[0]->Wait(milliseconds(10));
  }
  // The message that rank 2 sent before is still there, and notices for rank 2 complete at once.
  std::string got(text.size(), '.');
  ranks[0]->PostReceive(2, kTag, std::as_writable_bytes(std::span(got)), {.operation = 1});
  ranks[0]->PostSend(2, Transport::kNoticeTag, Bytes(text), {.operation = 2});
  EXPECT_TRUE(poller.Await(1) && poller.Await(2));
  EXPECT_EQ(got, text);
  // Rank 2 cannot send more.
  ranks[0]->PostReceive(2, kTag, std::as_writable_bytes(std::span(got)), {.operation = 3});
  const absl::Status status = poller.AwaitError();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(Text(status), AllOf(StartsWith("rank 2 (high)"), HasSubstr("has ended its part of the job")));
}

// The ends of its two connections need not come together on a network that loses packets.
TEST(TcpTransportTest, ARankThatLeavesMayEndOneConnectionLate) {
  for (const bool notices_first : {false, true}) {
    RankAndBarePeers it = ConnectBarePeers(1, {.loss_grace_ms = 1});
    Socket& first = notices_first ? it.peers[0].notices : it.peers[0].messages;
    ASSERT_TRUE(SendAll(first, WireGoodbye()));
    first = Socket();
    Poller poller(it.rank.get());
    for (int i = 0; i < 20; ++i) {
      it.rank->Wait(milliseconds(2));
      std::this_thread::sleep_for(milliseconds(2));
      ASSERT_EQ(poller.Poll(), absl::OkStatus()) << notices_first;
    }
    if (!notices_first) continue;
    // Messages have been expected all the while.
    std::string got(4, '.');
    it.rank->PostReceive(1, kTag, std::as_writable_bytes(std::span(got)), {.operation = 1});
    ASSERT_TRUE(SendAll(it.peers[0].messages, WireMessage(kTag, "last")));
    EXPECT_TRUE(poller.Await(1));
    EXPECT_EQ(got, "last");
  }
}

// Its operation would never complete, and the job would wait for its deadline.
TEST(TcpTransportTest, ARankThatLeavesBeforeItHasTakenItsMessagesIsAnError) {
  RankAndBarePeers it = ConnectBarePeers(1, {.loss_grace_ms = 1});
  const std::vector<std::byte> much(16 << 20);
  it.rank->PostSend(1, kTag, much, {.operation = 1});
  for (Socket* const socket : {&it.peers[0].messages, &it.peers[0].notices}) {
    ASSERT_TRUE(SendAll(*socket, WireGoodbye()));
    ASSERT_TRUE(AwaitDelivery(*socket));
  }
  it.peers.clear();
  Poller poller(it.rank.get());
  EXPECT_TRUE(absl::IsUnavailable(poller.AwaitError()));
  EXPECT_FALSE(poller.IsDone(1));
}

// A close with unread bytes resets the connection, and a reset may overtake the last words.
TEST(TcpTransportTest, ARankLeavesInOrderWithNoticesUnread) {
  RankAndBarePeers it = ConnectBarePeers(1);
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(SendAll(it.peers[0].notices, WireMessage(Transport::kNoticeTag, "too late")));
  }
  ASSERT_TRUE(AwaitDelivery(it.peers[0].notices));
  it.rank.reset();
  for (const Socket* const socket : {&it.peers[0].messages, &it.peers[0].notices}) {
    EXPECT_EQ(ReceiveSome(*socket, WireGoodbye().size()), WireGoodbye());
    EXPECT_TRUE(EndsInOrder(*socket));
  }
}

// The bytes that have arrived at the other end and are not read.
int64_t UnreadBytes(const Socket& socket) {
  int count = 0;
  CHECK(ioctl(socket.fd(), FIONREAD, &count) == 0);
  return count;
}

// Its reason is still in its own kernel when it ends, as on a network that loses packets, and it has not read all that
// has arrived. A reset would destroy the reason.
TEST(TcpTransportTest, TheReasonOfARankThatEndsArrives) {
  for (const bool has_error : {false, true}) {
    RankAndBarePeers it = ConnectBarePeers(2, {.last_words_ms = 20'000});
    Poller poller(it.rank.get());
    const Socket& notices = it.peers[0].notices;
    // The peer reads nothing, until its kernel takes no more.
    const std::string text(kAbortNoticeBytesMax, 'x'), reason = "because";
    const int64_t length = std::ssize(WireMessage(Transport::kNoticeTag, text));
    uint64_t count = 0;
    while (static_cast<int64_t>(count) * length < UnreadBytes(notices) + (64 << 10)) {
      ASSERT_LT(count, 10'000u);
      it.rank->PostSend(1, Transport::kNoticeTag, Bytes(text), {.operation = count++});
    }
    it.rank->PostSend(1, Transport::kNoticeTag, Bytes(reason), {.operation = count});
    ASSERT_EQ(poller.Poll(), absl::OkStatus());
    ASSERT_TRUE(poller.IsDone(count)) << "the kernel has not taken the reason";
    const std::vector<std::byte> much(16 << 20);
    if (has_error) {
      it.peers.pop_back();
      EXPECT_FALSE(poller.AwaitError().ok());
    } else {
      it.rank->PostSend(1, kTag, much, {.operation = count + 1});  // which it then owes
    }
    ASSERT_TRUE(SendAll(notices, WireMessage(Transport::kNoticeTag, "too late")));
    ASSERT_TRUE(AwaitDelivery(notices));
    std::jthread ender([&] { it.rank.reset(); });
    std::this_thread::sleep_for(milliseconds(50));  // it has ended now, or waits for this peer
    std::string got = ReceiveSome(notices, count * length + WireMessage(Transport::kNoticeTag, reason).size());
    EXPECT_TRUE(got.ends_with(WireMessage(Transport::kNoticeTag, reason))) << has_error << " " << got.size();
  }
}

// A host that has vanished acknowledges nothing.
TEST(TcpTransportTest, ARankThatEndsWaitsForItsReasonInVainOnlyForAWhile) {
  RankAndBarePeers it = ConnectBarePeers(1, {.last_words_ms = 50});
  const std::string text(kAbortNoticeBytesMax, 'x');
  for (uint64_t i = 0; i < 1000; ++i) it.rank->PostSend(1, Transport::kNoticeTag, Bytes(text), {.operation = i});
  const Clock::time_point start = Clock::now();
  it.rank.reset();
  EXPECT_GE(Clock::now() - start, milliseconds(50));
  EXPECT_LT(Clock::now() - start, seconds(20));
}

// On neither connection: one goodbye would make the peer believe that this rank owes it nothing.
TEST(TcpTransportTest, ARankThatOwesAMessageSaysNoGoodbye) {
  RankAndBarePeers it = ConnectBarePeers(1);
  const std::vector<std::byte> much(16 << 20);
  it.rank->PostSend(1, kTag, much, {.operation = 1});
  it.rank.reset();
  EXPECT_TRUE(EndsInOrder(it.peers[0].notices));
}

// Whatever was sent arrives, though the rank that has sent it has ended: a job's last answer.
TEST(TcpTransportTest, WhatWasSentOutlivesItsRank) {
  auto ranks = Ranks(2, {.unexpected_bytes_max = 64 << 20});
  const std::vector<std::byte> data = Pattern(10'000, 1);
  Poller sender(ranks[0].get());
  uint64_t sent = 0;
  // Until the kernel takes no more.
  for (; sender.done_count() == sent; ++sent) {
    ASSERT_LT(sent, 100'000u);
    ranks[0]->PostSend(1, kTag, data, {.operation = sent});
    ASSERT_EQ(sender.Poll(), absl::OkStatus());
  }
  ranks[0].reset();
  Poller receiver(ranks[1].get());
  std::vector<std::byte> got(data.size());
  for (uint64_t i = 0; i < sender.done_count(); ++i) {
    ranks[1]->PostReceive(0, kTag, got, {.operation = i});
    ASSERT_TRUE(receiver.Await(i)) << i << " of " << sender.done_count() << ": " << receiver.Poll();
  }
  EXPECT_EQ(got, data);
}

TEST(TcpTransportTest, ARankThatIsAwaitedMustNotLeave) {
  auto ranks = Ranks(2);
  std::vector<std::byte> data(10);
  ranks[0]->PostReceive(1, kTag, data, {.operation = 1});
  ranks[1].reset();
  EXPECT_THAT(Text(Poller(ranks[0].get()).AwaitError()), HasSubstr("has ended its part of the job"));
}

// A rank that fails does not pretend to leave in order.
TEST(TcpTransportTest, ARankWithAnErrorSaysNoGoodbye) {
  auto ranks = Ranks(3);
  std::vector<std::byte> data(10);
  ranks[1]->PostReceive(0, kTag, data, {.operation = 1});
  ranks[0].reset();
  EXPECT_FALSE(Poller(ranks[1].get()).AwaitError().ok());
  ranks[1].reset();
  const absl::Status status = Poller(ranks[2].get()).AwaitError();
  EXPECT_THAT(Text(status), AllOf(StartsWith("rank 1"), HasSubstr("has closed its connection")));
}

}  // namespace
}  // namespace starring
