#include "worker/check/peer_link.h"

#include <dlfcn.h>
#include <errno.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/tcp.h>  // not netinet/tcp.h, whose tcp_info ends before tcpi_bytes_acked
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/steady_time.h"
#include "common/host/machine_limits.h"
#include "common/network/dial.h"

static std::atomic<bool> writes_fail = false;
static std::atomic<bool> slow_name_may_end = false;

// These replace libc's functions. The name service is silent about one name until the test lets it answer.
extern "C" ssize_t write(int fd, const void* data, size_t size) {
  if (!writes_fail) return syscall(SYS_write, fd, data, size);
  errno = EAGAIN;
  return -1;
}
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

class PeerLinkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto listener = PeerListener::Start();
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
  }
  PeerLink Link(uint64_t nonce) {
    const std::vector<std::string> addresses = {absl::StrCat("127.0.0.1:", listener_->port())};
    std::vector<DialResult> dialled = DialAll(addresses, absl::Seconds(20));
    EXPECT_EQ(dialled[0].error, "");
    EXPECT_EQ(dialled[0].local_address, "127.0.0.1");
    return PeerLink(std::move(dialled[0].socket), nonce);
  }
  std::unique_ptr<PeerListener> listener_;
};

TEST_F(PeerLinkTest, ListensAtAddressesOfIpv6Too) {
  if (access("/proc/net/if_inet6", R_OK) != 0) GTEST_SKIP() << "this machine has no IPv6";
  const std::vector<std::string> addresses = {absl::StrCat("[::1]:", listener_->port())};
  std::vector<DialResult> dialled = DialAll(addresses, absl::Seconds(20));
  ASSERT_EQ(dialled[0].error, "");
  EXPECT_TRUE(PeerLink(std::move(dialled[0].socket), listener_->nonce()).MeasureRoundTrip(Soon()).ok());
}

TEST_F(PeerLinkTest, MeasuresRoundTripClockAndBandwidth) {
  PeerLink link = Link(listener_->nonce());
  const auto round_trip = link.MeasureRoundTrip(Soon());
  ASSERT_TRUE(round_trip.ok()) << round_trip.status();
  EXPECT_GT(round_trip->microseconds, 0);
  EXPECT_LT(std::abs(round_trip->clock_ahead_s), 1);
  const auto rate = link.MeasureBandwidth(0.05, Soon());
  ASSERT_TRUE(rate.ok()) << rate.status();
  EXPECT_GT(*rate, 1e6);
  EXPECT_TRUE(link.MeasureRoundTrip(Soon()).ok()) << "after the payload";
}

TEST_F(PeerLinkTest, CarriesNotes) {
  PeerLink link = Link(listener_->nonce());
  const auto none = link.Get(3, 1, Soon());
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_FALSE(none->has_value());
  const std::string note(kCheckNoteBytesMax, 'n');
  ASSERT_TRUE(link.Put(3, 1, note, Soon()).ok());
  PeerLink other = Link(listener_->nonce());
  const auto found = other.Get(3, 1, Soon());
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(*found, note);
  EXPECT_EQ(listener_->Get(3, 1), note);
  EXPECT_FALSE(link.Put(3, 1, note + "x", Soon()).ok()) << "longer than limits.h allows";
}

TEST_F(PeerLinkTest, TheListenerTakesNothingBeyondTheLimits) {
  EXPECT_TRUE(Link(listener_->nonce()).Put(kWorldSizeMax - 1, kCheckStagesMax, "x", Soon()).ok());
  EXPECT_FALSE(Link(listener_->nonce()).Put(kWorldSizeMax, kCheckStagesMax, "x", Soon()).ok());
  EXPECT_FALSE(Link(listener_->nonce()).Put(kWorldSizeMax - 1, kCheckStagesMax + 1, "x", Soon()).ok());
  const std::vector<std::string> addresses = {absl::StrCat("127.0.0.1:", listener_->port())};
  for (const uint32_t excess : {0u, 1u}) {
    const std::vector<DialResult> dialled = DialAll(addresses, absl::Seconds(20));
    const int fd = dialled[0].socket.fd();
    peer_protocol::Request head{.word = peer_protocol::Word::kData};
    head.nonce = listener_->nonce();
    head.length = static_cast<uint32_t>(kCheckPayloadBytesMax) + excess;
    ASSERT_EQ(send(fd, &head, sizeof(head), MSG_NOSIGNAL), static_cast<ssize_t>(sizeof(head)));
    pollfd wait = {.fd = fd, .events = POLLRDHUP, .revents = 0};
    EXPECT_EQ(poll(&wait, 1, excess == 0 ? 50 : 20'000), static_cast<int>(excess)) << "a longer payload ends the link";
  }
}

// Room for two connections from every rank of the largest job, and some more.
TEST_F(PeerLinkTest, TheListenerHasSoManyConnectionsAtATime) {
  constexpr int kConnections = 2 * kWorldSizeMax + 64;
  constexpr int kConnectionsAtOnce = 64;  // fewer than the backlog
  ASSERT_GE(RaiseDescriptorLimit(3 * kConnections), 2 * kConnections + 64);
  std::vector<PeerLink> links;
  const auto link_is_served = [&] {
    links.push_back(Link(listener_->nonce()));
    return links.back().Get(0, 1, Soon()).ok();
  };
  const std::vector<std::string> addresses(kConnectionsAtOnce - 1, absl::StrCat("127.0.0.1:", listener_->port()));
  std::vector<std::vector<DialResult>> dialled;
  while (std::ssize(dialled) * kConnectionsAtOnce < kConnections) {
    dialled.push_back(DialAll(addresses, absl::Seconds(20)));
    ASSERT_TRUE(link_is_served()) << dialled.size();
  }
  EXPECT_FALSE(link_is_served());
  // Connections that end make room.
  dialled.clear();
  EXPECT_TRUE(link_is_served());
}

// Otherwise the destructor waits for the listener's thread until this test is ended from outside.
TEST_F(PeerLinkTest, TheListenerEndsAlsoIfItsEventCannotBeWritten) {
  writes_fail = true;
  listener_.reset();
  writes_fail = false;
}

TEST(PeerLinkLimitsTest, AnAnswerLongerThanANoteEndsTheLink) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  const Socket listener(ends[0]);
  PeerLink link(Socket(ends[1]), 1);
  peer_protocol::Answer answer;
  answer.found = 1;
  answer.length = static_cast<uint32_t>(kCheckNoteBytesMax) + 1;
  ASSERT_EQ(send(listener.fd(), &answer, sizeof(answer), 0), static_cast<ssize_t>(sizeof(answer)));
  EXPECT_EQ(link.Get(0, 1, SteadyNow() + absl::Seconds(1)).status().code(), absl::StatusCode::kUnavailable);
}

// Even if it has much time: a test must not fill a fast link for long.
TEST_F(PeerLinkTest, ABandwidthTestSendsNoMoreThanAllowed) {
  const std::vector<std::string> addresses = {absl::StrCat("127.0.0.1:", listener_->port())};
  std::vector<DialResult> dialled = DialAll(addresses, absl::Seconds(20));
  const int fd = dialled[0].socket.fd();
  PeerLink link(std::move(dialled[0].socket), listener_->nonce());
  ASSERT_TRUE(link.MeasureBandwidth(15, Soon()).ok());
  tcp_info info = {};
  socklen_t length = sizeof(info);
  ASSERT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length), 0);
  EXPECT_GE(info.tcpi_bytes_acked, static_cast<uint64_t>(kCheckBandwidthBytesMax));
  EXPECT_LT(info.tcpi_bytes_acked, static_cast<uint64_t>(kCheckBandwidthBytesMax + kCheckPayloadBytesMax));
}

TEST_F(PeerLinkTest, StrangersAreCut) {
  PeerLink stranger = Link(listener_->nonce() + 1);
  const auto answer = stranger.MeasureRoundTrip(Soon());
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kUnavailable) << answer.status();
  EXPECT_TRUE(Link(listener_->nonce()).MeasureRoundTrip(Soon()).ok());
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

  PeerLink link(std::move(dialled[1].socket), 0);
  const absl::Time start = SteadyNow();
  const auto answer = link.MeasureRoundTrip(start + absl::Milliseconds(200));
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kDeadlineExceeded) << answer.status();
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
