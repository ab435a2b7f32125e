// Strangers at a rendezvous over TCP, lost connections, and false ranks.
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/limits.h"
#include "common/network/address.h"
#include "common/network/dial.h"
#include "common/transport/tcp/tcp_handshake.h"
#include "common/transport/tcp/tcp_listener.h"
#include "common/transport/tcp/tcp_rendezvous.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/transport/tcp/tcp_job.h"
#include "tests/common/transport/tcp/tcp_loopback.h"

namespace starring {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr size_t kHeadBytes = 24, kHelloBytes = 440;

// The hello of a true rank, as a stranger on the network hears it.
std::string RecordedHello(int rank, int world_size) {
  SocketPair pair = ConnectedSockets();
  const TcpDialer dialer(std::move(pair.a), HelloOf(rank, world_size), kToken);
  return ReceiveSome(pair.b, kHeadBytes + kHelloBytes);
}

// Opens connections as fast as one thread can, says `said` on each, and keeps the last few hundred.
class Flood {
 public:
  Flood(const std::string& address, std::string said)
      : said_(std::move(said)), port_(ParseHostPort(address)->port), thread_([this] { Run(); }) {}
  ~Flood() {
    stop_ = true;
    thread_.join();
  }
  int count() const { return count_; }

 private:
  void Run() {
    constexpr size_t kKept = 400;
    sockaddr_in place = {};
    place.sin_family = AF_INET;
    place.sin_port = htons(static_cast<uint16_t>(port_));
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    std::deque<Socket> kept;
    while (!stop_) {
      Socket one(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      connect(one.fd(), reinterpret_cast<const sockaddr*>(&place), sizeof(place));
      if (!said_.empty()) send(one.fd(), said_.data(), said_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      kept.push_back(std::move(one));
      if (kept.size() > kKept) kept.pop_front();
      ++count_;
    }
  }

  const std::string said_;
  const int port_;
  std::atomic<bool> stop_ = false;
  std::atomic<int> count_ = 0;
  std::thread thread_;
};

// bench/strangers has the measured form.
TEST(TcpRendezvousStrangersTest, AFloodDoesNotKeepTheRanksOut) {
  for (const std::string& said : {std::string(), std::string("x"), RecordedHello(3, 8)}) {
    for (int repeat = 0; repeat < 2; ++repeat) {
      Job job(8);
      const Flood flood(job.address(), said);
      EXPECT_TRUE(Until([&] { return flood.count() > 1000; }, [] { std::this_thread::yield(); }));
      job.StartAll(absl::Seconds(25));
      job.Join();
      for (int rank = 0; rank < 8; ++rank) EXPECT_TRUE(job.result(rank).ok()) << said.size() << ": " << job.error(rank);
    }
  }
}

// A rank that has said its hello keeps its seat, however many come after it and say nothing.
TEST(TcpRendezvousStrangersTest, SilentStrangersTakeNoSeatFromARank) {
  Job job(2);
  job.Start(0);
  TcpDialer slow(Dial(job.address()), HelloOf(1, 2), kToken);
  pollfd challenge = {.fd = slow.connection().fd(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(poll(&challenge, 1, 20'000), 1);
  std::vector<Socket> strangers;
  for (int i = 0; i < 3 * kStrangerConnectionsMax; ++i) strangers.push_back(Dial(job.address()));
  EXPECT_TRUE(job.AwaitLine("was silent for too long"));
  absl::StatusOr<bool> welcome = false;
  Until([&] { return !welcome.ok() || *welcome; }, [&] { welcome = slow.Advance(); });
  EXPECT_TRUE(welcome.ok()) << welcome.status();
}

TEST(TcpRendezvousStrangersTest, ARecordedHelloGetsOneSeat) {
  Job job(2);
  job.Start(0);
  const std::string hello = RecordedHello(1, 2);
  const Socket first = Dial(job.address());
  ASSERT_TRUE(SendAll(first, hello));
  ASSERT_EQ(ReceiveSome(first, kHeadBytes + 64).size(), kHeadBytes + 64) << "its challenge";
  for (int i = 0; i < 3; ++i) {
    const Socket again = Dial(job.address());
    ASSERT_TRUE(SendAll(again, hello));
    EXPECT_EQ(ReceiveSome(again, 1), "") << "the end of the stream";
  }
  EXPECT_TRUE(job.AwaitLine("has sent a hello that was heard before"));
  job.Start(1);
  job.Join();
  job.ExpectConnected();
}

// Rank 0, in a process that can open a dozen more descriptors; exits with 0 if all ranks have met.
[[noreturn]] void LeadWithFewDescriptors(TcpRendezvousOptions options) {
  std::vector<int> taken;
  for (int fd = dup(0); fd >= 0; fd = dup(0)) taken.push_back(fd);
  for (int i = 0; i < 12; ++i) {
    close(taken.back());
    taken.pop_back();
  }
  _exit(ConnectFullMesh(std::move(options)).ok() ? 0 : 1);
}

// Strangers give up their descriptors, before their time to say hello is over.
TEST(TcpRendezvousStrangersTest, ARankJoinsThoughRankZeroHasNoDescriptorLeft) {
  Job job(2);
  TcpRendezvousOptions options = job.Options(0);
  const int listening = dup(options.listener->fd());  // a child has no TcpListener of its parent
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    options.listener = *TcpListener::Adopt(Socket(listening), job.address());
    const rlimit few = {.rlim_cur = 512, .rlim_max = 512};
    setrlimit(RLIMIT_NOFILE, &few);
    LeadWithFewDescriptors(std::move(options));
  }
  options.listener.reset();
  close(listening);
  std::vector<Socket> strangers;
  for (int i = 0; i < 40; ++i) strangers.push_back(Dial(job.address()));
  TcpRendezvousOptions one = job.Options(1);
  one.join_deadline = absl::Milliseconds(kHelloDeadlineMs / 2);
  const Joined joined = ConnectFullMesh(std::move(one));
  EXPECT_TRUE(joined.ok()) << joined.status();
  int status = -1;
  rusage used = {};
  if (!joined.ok()) kill(child, SIGKILL);
  ASSERT_EQ(wait4(child, &status, 0, &used), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// --- False ranks ---

// A process that has rank 0's port for a while cannot refuse a rank for good: it does not have the job's secret.
TEST(TcpRendezvousStrangersTest, ARefusalWithoutAProofIsNotFinal) {
  const ReservedAddress address;
  std::optional<TcpListener> thief = *TcpListener::Listen(address.text);
  const auto options = [&](int rank) {
    return TcpRendezvousOptions{.rank = rank, .world_size = 2, .rendezvous = address.text, .token = kToken};
  };
  std::mutex mutex;
  std::string said;
  Joined zero, one;
  std::thread rank_one([&] {
    TcpRendezvousOptions mine = options(1);
    mine.say = [&](const std::string& line) {
      const std::lock_guard lock(mutex);
      said += line + "\n";
    };
    one = ConnectFullMesh(std::move(mine));
  });
  const auto has_said = [&] {
    const std::lock_guard lock(mutex);
    return !said.empty();
  };
  EXPECT_TRUE(Until(has_said, [&] {
    if (Socket socket = thief->Accept(); socket.fd() >= 0) {
      TcpFrameConnection(std::move(socket)).Refuse(absl::InvalidArgumentError("go away"));
    }
  }));
  thief.reset();
  std::thread rank_zero([&] { zero = ConnectFullMesh(options(0)); });
  rank_zero.join();
  rank_one.join();
  EXPECT_TRUE(zero.ok()) << zero.status();
  EXPECT_TRUE(one.ok()) << one.status();
  EXPECT_THAT(said, AllOf(HasSubstr("says: go away; it has not proved that it has this job's secret"),
                          HasSubstr("rank 1 tries for ")));
}

TEST(TcpRendezvousStrangersTest, AThiefLearnsNoSecretAndTheRankSaysWhy) {
  auto thief = TcpListener::Listen("127.0.0.1:0");
  std::string heard;
  std::thread playing([&] {
    Socket socket;
    Until([&] { return socket.fd() >= 0; }, [&] { socket = thief->Accept(); });
    heard = ReceiveSome(socket, kHeadBytes + kHelloBytes);
    TcpFrameConnection connection(std::move(socket));
    connection.Send(TcpFrameKind::kChallenge, std::string(64, 'x'));
    connection.Send(TcpFrameKind::kWelcome, "");
    connection.Refuse(absl::InternalError("late"));
  });
  const Joined joined = ConnectFullMesh({.rank = 1,
                                         .world_size = 2,
                                         .rendezvous = thief->address(),
                                         .token = kToken,
                                         .join_deadline = absl::Milliseconds(100)});
  playing.join();
  EXPECT_TRUE(absl::IsUnauthenticated(joined.status())) << joined.status();
  EXPECT_THAT(Text(joined.status()), AllOf(HasSubstr(thief->address()), HasSubstr("another job secret")));
  EXPECT_THAT(heard, testing::Not(HasSubstr(kToken.substr(0, 8))));
}

// --- Connections of the mesh ---

// Rank 1 of 3, played by the test: it has registered, and accepts connections of the mesh one at a time.
class PlayedRankOne {
 public:
  explicit PlayedRankOne(const std::string& rendezvous)
      : listener_(*TcpListener::Listen("127.0.0.1:0")), rank_(rendezvous, Hello(TcpHello::Purpose::kRegister)) {
    EXPECT_EQ(rank_.AwaitWelcome(), absl::OkStatus());
  }
  BareRank& rank() { return rank_; }
  TcpHello Hello(TcpHello::Purpose purpose) const {
    TcpHello hello = HelloOf(1, 3);
    hello.purpose = purpose;
    hello.address = listener_.address();
    return hello;
  }
  // The next connection, whose hello is heard and not answered with a welcome yet.
  std::unique_ptr<TcpDoorkeeper> Accept() {
    Socket socket;
    EXPECT_TRUE(Until([&] { return socket.fd() >= 0; }, [&] { socket = listener_.Accept(); }));
    auto door = std::make_unique<TcpDoorkeeper>(std::move(socket), kToken, &heard_);
    absl::StatusOr<bool> is_proved = false;
    EXPECT_TRUE(Until([&] { return is_proved.ok() && *is_proved; }, [&] { is_proved = door->Advance(); }));
    return door;
  }
  void Drop() {
    Socket socket;
    EXPECT_TRUE(Until([&] { return socket.fd() >= 0; }, [&] { socket = listener_.Accept(); }));
    Reset(std::move(socket));
  }
  // Refuses the next connection, if there is one, as a process that does not have the job's secret. Whether there was.
  bool RefuseUnproved() {
    Socket socket = listener_.Accept();
    if (socket.fd() < 0) return false;
    pollfd hello = {.fd = socket.fd(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(poll(&hello, 1, 10'000), 1);  // a hello that comes after the close would reset the connection
    TcpFrameConnection(std::move(socket)).Refuse(absl::InvalidArgumentError("go away"));
    return true;
  }

 private:
  TcpListener listener_;
  BareRank rank_;
  TcpHellosHeard heard_;
};

// Expects that a message of `transport` to `peer` comes by the connection for messages.
void ExpectMessageOn(Transport& transport, int peer, const Socket& messages) {
  const std::string text = "by the right connection";
  transport.PostSend(peer, 16, std::as_bytes(std::span(text)), {.operation = 1});
  std::vector<Transport::Token> completed;
  EXPECT_EQ(transport.Poll(completed), absl::OkStatus());
  const std::string expected = WireMessage(16, text);
  EXPECT_EQ(ReceiveSome(messages, expected.size()), expected);
}

// Rank 2 loses two connections with rank 1 in the middle of the mesh, dials again, and is welcomed in the other order.
// Rank 1 dials rank 0 in the other order, too. Each connection serves what its hello says, not what its turn suggests.
TEST(TcpRendezvousStrangersTest, LostConnectionsAreDialledAgainAndToldApartByTheirHellos) {
  using Purpose = TcpHello::Purpose;
  Job job(3);
  const auto begin = std::chrono::steady_clock::now();
  job.Start(0);
  PlayedRankOne one(job.address());
  job.Start(2);
  ASSERT_TRUE(one.rank().AwaitTable());
  for (int i = 0; i < 2; ++i) one.Drop();
  std::unique_ptr<TcpDoorkeeper> messages, notices;
  for (int i = 0; i < 2; ++i) {
    std::unique_ptr<TcpDoorkeeper> door = one.Accept();
    (door->hello().purpose == Purpose::kMessages ? messages : notices) = std::move(door);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20)) << "after kTcpRedialMs, not at the end";
  ASSERT_TRUE(messages != nullptr && notices != nullptr);
  notices->connection().Send(TcpFrameKind::kWelcome, "");
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // so that rank 2 hears the one before the other
  messages->connection().Send(TcpFrameKind::kWelcome, "");
  BareRank to_zero_notices(job.address(), one.Hello(Purpose::kNotices));
  ASSERT_EQ(to_zero_notices.AwaitWelcome(), absl::OkStatus());
  BareRank to_zero_messages(job.address(), one.Hello(Purpose::kMessages));
  ASSERT_EQ(to_zero_messages.AwaitWelcome(), absl::OkStatus());
  one.rank().Send(TcpFrameKind::kReady);
  job.Join();
  for (const int rank : {0, 2}) ASSERT_TRUE(job.result(rank).ok()) << job.error(rank);
  ExpectMessageOn(**job.result(2), 1, messages->connection().socket());
  ExpectMessageOn(**job.result(0), 1, to_zero_messages.TakeChannel().socket());
}

// Another program has a rank's port. It is asked again, as that rank may come, but not as often as a rank whose
// connection was lost.
TEST(TcpRendezvousStrangersTest, ARefusalWithoutAProofInTheMeshIsTriedAgainAfterAPause) {
  constexpr int kPauseMs = 500, kJoinMs = 2'000;
  Job job(3);
  job.Start(0);
  PlayedRankOne one(job.address());
  TcpRendezvousOptions options = job.Options(2);
  options.join_deadline = absl::Milliseconds(kJoinMs);
  Joined two;
  std::atomic<bool> has_ended = false;
  std::thread rank_two([&] {
    two = ConnectFullMesh(std::move(options));
    has_ended = true;
  });
  int refused_count = 0;
  EXPECT_TRUE(Until([&] { return has_ended.load(); }, [&] { refused_count += one.RefuseUnproved() ? 1 : 0; }));
  rank_two.join();
  EXPECT_THAT(Text(two.status()), AllOf(HasSubstr("rank 1 (127.0.0.1:"), HasSubstr("go away")));
  // For messages and for notices: at once, after each pause, and a last time.
  EXPECT_GE(refused_count, 3);
  EXPECT_LE(refused_count, 2 * (kJoinMs / kPauseMs + 1));
}

}  // namespace
}  // namespace starring
