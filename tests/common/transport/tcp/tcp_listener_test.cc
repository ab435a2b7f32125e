#include "common/transport/tcp/tcp_listener.h"

#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/network/address.h"
#include "common/network/dial.h"
#include "common/network/port_range.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {
std::atomic<bool> localhost_is_six = false;
}

// In place of the C library's: the hosts file of another machine.
extern "C" int getaddrinfo(const char* host, const char* port, const addrinfo* hints, addrinfo** found) {
  static const auto real = reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  const bool is_localhost = host != nullptr && std::string(host) == "localhost";
  const bool is_number = hints != nullptr && (hints->ai_flags & AI_NUMERICHOST) != 0;
  return real(is_localhost && !is_number && localhost_is_six ? "::1" : host, port, hints, found);
}

namespace starring {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

bool CanConnect(TcpListener& listener, const std::string& address) {
  const DialResult dialled = std::move(DialAll({&address, 1}, absl::Seconds(10)).front());
  if (dialled.socket.fd() < 0) return false;
  pollfd polled = {.fd = listener.fd(), .events = POLLIN, .revents = 0};
  return poll(&polled, 1, 10'000) == 1 && listener.Accept().fd() >= 0;
}

TEST(TcpListenerTest, SaysWhereItListens) {
  for (const std::string host : {"127.0.0.1", "localhost", "[::1]"}) {
    auto listener = TcpListener::Listen(host + ":0");
    if (!listener.ok() && host == "[::1]") continue;  // a machine without IPv6
    ASSERT_TRUE(listener.ok()) << listener.status();
    EXPECT_THAT(listener->address(), AllOf(StartsWith(host + ":"), Not(HasSubstr(":0"))));
    EXPECT_TRUE(CanConnect(*listener, listener->address()));
    EXPECT_LT(listener->Accept().fd(), 0);
  }
}

// A hosts file without IPv4's localhost.
TEST(TcpListenerTest, LocalhostIsWhatTheOtherRanksDial) {
  localhost_is_six = true;
  auto listener = TcpListener::Listen("localhost:0");
  if (listener.ok()) {  // else a machine without IPv6
    const std::string port = listener->address().substr(listener->address().rfind(':'));
    EXPECT_TRUE(CanConnect(*listener, "localhost" + port));
    EXPECT_TRUE(CanConnect(*listener, "[::1]" + port));
  }
  localhost_is_six = false;
}

// A host's own name may mean 127.0.1.1 on that host, and another address on all others.
TEST(TcpListenerTest, ANameMeansEveryAddressOfThisMachine) {
  auto listener = TcpListener::Listen("a-name-that-is-not-looked-up:0");
  ASSERT_TRUE(listener.ok()) << listener.status();
  const std::string port = listener->address().substr(listener->address().rfind(':'));
  EXPECT_TRUE(CanConnect(*listener, "127.0.0.1" + port));
  EXPECT_TRUE(CanConnect(*listener, "127.0.1.1" + port));
}

TEST(TcpListenerTest, ANumericHostMeansThatAddressOnly) {
  auto listener = TcpListener::Listen("127.0.0.1:0");
  ASSERT_TRUE(listener.ok());
  EXPECT_FALSE(CanConnect(*listener, "127.0.1.1" + listener->address().substr(listener->address().rfind(':'))));
}

TEST(TcpListenerTest, APortOfTheRangeIsTakenAndNoOther) {
  auto first = TcpListener::Listen("127.0.0.1:0");
  ASSERT_TRUE(first.ok());
  const int port = ParseHostPort(first->address())->port;
  const PortRange one = {.first = port, .last = port};
  const auto none = TcpListener::Listen("127.0.0.1:0", one);
  EXPECT_TRUE(absl::IsInvalidArgument(none.status())) << none.status();
  EXPECT_THAT(std::string(none.status().message()), HasSubstr(absl::StrCat("no port from ", port, " to ", port,
                                                                           " is free: end what listens there, or widen "
                                                                           "--port_range")));
  // The next port may be anybody's. Whichever of the three is free is one of the range.
  const auto next = TcpListener::Listen("127.0.0.1:0", {.first = port, .last = std::min(port + 2, 65535)});
  if (next.ok()) {
    EXPECT_GT(ParseHostPort(next->address())->port, port);
  }
  { const TcpListener gone = *std::move(first); }
  const auto again = TcpListener::Listen("127.0.0.1:0", one);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(ParseHostPort(again->address())->port, port);
  // A port that is given needs no range.
  EXPECT_THAT(std::string(TcpListener::Listen(again->address(), {.first = 1, .last = 65535}).status().message()),
              HasSubstr("is the port taken"));
}

TEST(TcpListenerTest, ASocketThatListensIsTakenOver) {
  const auto first = TcpListener::Listen("127.0.0.1:0");
  ASSERT_TRUE(first.ok());
  auto adopted = TcpListener::Adopt(Socket(dup(first->fd())), first->address());
  ASSERT_TRUE(adopted.ok()) << adopted.status();
  EXPECT_EQ(adopted->address(), first->address());
  EXPECT_TRUE(CanConnect(*adopted, first->address()));
  EXPECT_LT(adopted->Accept().fd(), 0);  // at once
}

// A launcher that has reserved a port hands it on so.
TEST(TcpListenerTest, ASocketThatIsBoundListensWhenItIsTakenOver) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in place = {};
  place.sin_family = AF_INET;
  place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(place);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&place), length), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&place), &length), 0);
  const int port = ntohs(place.sin_port);
  const auto elsewhere = TcpListener::Adopt(Socket(dup(fd)), "127.0.0.1:" + std::to_string(port ^ 1));
  EXPECT_TRUE(absl::IsInvalidArgument(elsewhere.status())) << elsewhere.status();
  const std::string address = "127.0.0.1:" + std::to_string(port);
  auto adopted = TcpListener::Adopt(Socket(fd), address);
  ASSERT_TRUE(adopted.ok()) << adopted.status();
  EXPECT_TRUE(CanConnect(*adopted, address));
}

// The rendezvous drops strangers when it has no descriptor left, and only then.
TEST(TcpListenerTest, AnAcceptThatFailsSaysWhy) {
  auto listener = TcpListener::Listen("127.0.0.1:0");
  ASSERT_TRUE(listener.ok());
  errno = 0;
  EXPECT_LT(listener->Accept().fd(), 0);
  EXPECT_TRUE(errno == EAGAIN || errno == EWOULDBLOCK) << errno;
}

TEST(TcpListenerTest, WhatDoesNotListenIsNotTakenOver) {
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  const Socket end(pipes[1]);
  for (const int fd : {socket(AF_INET, SOCK_STREAM, 0), pipes[0], -1}) {
    const absl::Status status = TcpListener::Adopt(Socket(fd), "127.0.0.1:7").status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("127.0.0.1:7"));
  }
}

TEST(TcpListenerTest, RefusesWithTheReason) {
  const auto first = TcpListener::Listen("127.0.0.1:0");
  ASSERT_TRUE(first.ok());
  for (const std::string& address : {first->address(), std::string("192.0.2.1:0"), std::string("nonsense")}) {
    const absl::Status status = TcpListener::Listen(address).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(address));
  }
}

}  // namespace
}  // namespace starring
