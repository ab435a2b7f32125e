#include "worker/check/peer_listener.h"

#include <dlfcn.h>
#include <errno.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/steady_time.h"
#include "common/host/machine_limits.h"
#include "common/network/dial.h"

static std::atomic<bool> slow_name_may_end = false;

// Replaces libc's function. The name service is silent about one name until the test lets it answer.
extern "C" int getaddrinfo(const char* host, const char* port, const addrinfo* hints, addrinfo** found) {
  using Function = int(const char*, const char*, const addrinfo*, addrinfo**);
  static Function* const original = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, "getaddrinfo"));
  if (host == nullptr || std::string_view(host) != "slow.invalid") return original(host, port, hints, found);
  if (hints != nullptr && (hints->ai_flags & AI_NUMERICHOST) != 0) return EAI_NONAME;  // asks no name service
  slow_name_may_end.wait(false);
  return EAI_AGAIN;
}

namespace starring {
namespace {

using ::testing::HasSubstr;

// A bound port of loopback. Listens if `listens`, and never accepts.
class SilentPort {
 public:
  explicit SilentPort(bool listens) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    EXPECT_EQ(bind(socket_.fd(), reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_TRUE(!listens || listen(socket_.fd(), 1) == 0);
    EXPECT_EQ(getsockname(socket_.fd(), reinterpret_cast<sockaddr*>(&address), &length), 0);
    address_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  }
  const std::string& address() const { return address_; }

 private:
  Socket socket_;
  std::string address_;
};

absl::Time Soon() { return SteadyNow() + absl::Seconds(20); }

absl::Status Ping(const Socket& socket, uint64_t nonce, absl::Time end) {
  v1::LinkReport link;
  return PingListener(socket, nonce, end, link);
}

class PeerListenerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto listener = PeerListener::Start();
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
  }
  Socket Dial(const std::string& host = "127.0.0.1") {
    const std::vector<std::string> addresses = {absl::StrCat(host, ":", listener_->port())};
    std::vector<DialResult> dialled = DialAll(addresses, absl::Seconds(20));
    EXPECT_EQ(dialled[0].error, "");
    return std::move(dialled[0].socket);
  }
  std::unique_ptr<PeerListener> listener_;
};

TEST_F(PeerListenerTest, ListensAtAddressesOfIpv6Too) {
  if (access("/proc/net/if_inet6", R_OK) != 0) GTEST_SKIP() << "this machine has no IPv6";
  EXPECT_TRUE(Ping(Dial("[::1]"), listener_->nonce(), Soon()).ok());
}

TEST_F(PeerListenerTest, MeasuresRoundTripAndClock) {
  v1::LinkReport link;
  const absl::Status pinged = PingListener(Dial(), listener_->nonce(), Soon(), link);
  ASSERT_TRUE(pinged.ok()) << pinged;
  EXPECT_GT(link.round_trip_us(), 0);
  EXPECT_LT(std::abs(link.clock_ahead_s()), 1);
}

TEST_F(PeerListenerTest, APingMayArriveInParts) {
  const Socket socket = Dial();
  const uint64_t nonce = listener_->nonce();
  for (size_t i = 0; i < sizeof(nonce); ++i) {
    ASSERT_EQ(send(socket.fd(), reinterpret_cast<const char*>(&nonce) + i, 1, MSG_NOSIGNAL), 1);
  }
  pollfd wait = {.fd = socket.fd(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(poll(&wait, 1, 20'000), 1);
  char answer[16];
  EXPECT_EQ(recv(socket.fd(), answer, sizeof(answer), 0), static_cast<ssize_t>(sizeof(answer)));
}

// Room for two connections from every rank of the largest job, and some more.
TEST_F(PeerListenerTest, HasSoManyConnectionsAtATime) {
  constexpr int kConnections = 2 * kWorldSizeMax + 64;
  constexpr int kConnectionsAtOnce = 64;  // fewer than the backlog
  ASSERT_GE(RaiseDescriptorLimit(3 * kConnections), 2 * kConnections + 64);
  std::vector<Socket> sockets;
  const auto is_served = [&] {
    sockets.push_back(Dial());
    return Ping(sockets.back(), listener_->nonce(), Soon()).ok();
  };
  const std::vector<std::string> addresses(kConnectionsAtOnce - 1, absl::StrCat("127.0.0.1:", listener_->port()));
  std::vector<std::vector<DialResult>> dialled;
  while (std::ssize(dialled) * kConnectionsAtOnce < kConnections) {
    dialled.push_back(DialAll(addresses, absl::Seconds(20)));
    ASSERT_TRUE(is_served()) << dialled.size();
  }
  EXPECT_FALSE(is_served());
  // Connections that end make room.
  dialled.clear();
  EXPECT_TRUE(is_served());
}

TEST_F(PeerListenerTest, StrangersAreCut) {
  const auto answer = Ping(Dial(), listener_->nonce() + 1, Soon());
  EXPECT_EQ(answer.code(), absl::StatusCode::kUnavailable) << answer;
  EXPECT_TRUE(Ping(Dial(), listener_->nonce(), Soon()).ok());
}

TEST(PeerListenerAnswerTest, AnotherNonceIsAnotherProgram) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  const Socket other(ends[0]);
  const Socket socket(ends[1]);
  const uint64_t answer[2] = {2, 0};
  ASSERT_EQ(send(other.fd(), answer, sizeof(answer), 0), static_cast<ssize_t>(sizeof(answer)));
  EXPECT_EQ(Ping(socket, 1, Soon()).code(), absl::StatusCode::kUnavailable);
}

TEST(TcpDialTest, SaysWhatIsWrong) {
  const SilentPort closed(/*listens=*/false);
  const SilentPort silent(/*listens=*/true);
  const std::vector<std::string> addresses = {closed.address(), silent.address(), "no-such-host.invalid:1",
                                              "255.255.255.255:1"};
  // Half of the time is for the name.
  std::vector<DialResult> dialled = DialAll(addresses, absl::Seconds(40));
  EXPECT_EQ(dialled[0].error_number, ECONNREFUSED);
  EXPECT_EQ(dialled[0].error, "connection refused (ECONNREFUSED)");
  EXPECT_EQ(dialled[1].error, "");
  EXPECT_THAT(dialled[2].error, HasSubstr("no-such-host.invalid: "));
  EXPECT_NE(dialled[3].error, "");

  const absl::Time start = SteadyNow();
  const auto answer = Ping(dialled[1].socket, 0, start + absl::Milliseconds(200));
  EXPECT_EQ(answer.code(), absl::StatusCode::kDeadlineExceeded) << answer;
  EXPECT_LT(SteadyNow() - start, absl::Seconds(10));
}

// The others are dialled while the name service is still silent.
TEST(TcpDialTest, ASlowNameDoesNotTakeTheTimeOfOtherAddresses) {
  const SilentPort silent(/*listens=*/true);
  const std::vector<std::string> addresses = {"slow.invalid:1", silent.address()};
  const std::vector<DialResult> dialled = DialAll(addresses, absl::Seconds(2));
  slow_name_may_end = true;
  slow_name_may_end.notify_all();
  EXPECT_EQ(dialled[0].error, "slow.invalid:1: the name service does not answer");
  EXPECT_EQ(dialled[0].error_number, 0);
  EXPECT_EQ(dialled[1].error, "");
}

TEST(TcpDialTest, GivesUpInTime) {
  // A full backlog answers nothing, like a firewall that drops packets.
  const SilentPort silent(/*listens=*/true);
  std::vector<std::vector<DialResult>> held;
  const absl::Time start = SteadyNow();
  for (int i = 0; i < 20; ++i) {
    held.push_back(DialAll(std::vector<std::string>{silent.address()}, absl::Milliseconds(300)));
    if (!held.back()[0].error.empty()) break;
  }
  EXPECT_EQ(held.back()[0].error, "connection timed out (ETIMEDOUT)");
  EXPECT_LT(SteadyNow() - start, absl::Seconds(20));
}

}  // namespace
}  // namespace starring
