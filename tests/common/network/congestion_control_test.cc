#include "common/network/congestion_control.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/network/address.h"
#include "common/network/dial.h"
#include "common/transport/tcp/tcp_listener.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using testing::Not;
using testing::StartsWith;

std::string ControlOf(int fd) {
  std::array<char, 16> name = {};
  socklen_t length = name.size() - 1;
  EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), &length), 0);
  return name.data();
}

bool SetControl(int fd, const std::string& name) {
  return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), static_cast<socklen_t>(name.size())) == 0;
}

std::string DefaultControl() {
  const Socket probe(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return ControlOf(probe.fd());
}

// The kernel's, which this process may use: Reno at least.
std::vector<std::string> Controls() {
  std::ifstream file("/proc/sys/net/ipv4/tcp_available_congestion_control");
  std::vector<std::string> found;
  for (std::string name; file >> name;) {
    const Socket probe(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (SetControl(probe.fd(), name)) found.push_back(name);
  }
  return found;
}

Socket Listen(const std::string& control) {
  Socket listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_TRUE(SetControl(listener.fd(), control));
  const sockaddr_in any = {.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  EXPECT_EQ(bind(listener.fd(), reinterpret_cast<const sockaddr*>(&any), sizeof(any)), 0);
  EXPECT_EQ(listen(listener.fd(), 1), 0);
  return listener;
}

Socket Call(int listener, const std::string& control) {
  Socket caller(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_TRUE(SetControl(caller.fd(), control));
  sockaddr_storage address;
  socklen_t length = sizeof(address);
  auto* const place = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(getsockname(listener, place, &length), 0);
  EXPECT_EQ(connect(caller.fd(), place, length), 0);
  return caller;
}

// Both ends of a connection on loopback that has `control`: the one that listened, and the one that called it.
std::pair<Socket, Socket> Connect(const std::string& control) {
  const Socket listener = Listen(control);
  Socket caller = Call(listener.fd(), control);
  return {Socket(accept(listener.fd(), nullptr, nullptr)), std::move(caller)};
}

TEST(CongestionControlTest, ReplacesBbrAndNothingElse) {
  const std::vector<std::string> controls = Controls();
  ASSERT_THAT(controls, testing::Contains("reno"));
  for (const std::string& control : controls) {
    const Socket one(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_TRUE(SetControl(one.fd(), control));
    AvoidBbr(one.fd());
    if (control.starts_with("bbr")) {
      EXPECT_THAT(ControlOf(one.fd()), testing::AnyOf("cubic", "reno"));
    } else {
      EXPECT_EQ(ControlOf(one.fd()), control);
    }
  }
  AvoidBbr(-1);
  AvoidBbr(STDIN_FILENO);
}

TEST(CongestionControlTest, ReplacesThatOfTheConnectionsToOnePeerOnly) {
  const std::vector<std::string> controls = Controls();
  if (!testing::Matches(testing::Contains("bbr"))(controls)) GTEST_SKIP() << "this kernel has no BBR";
  const auto [first, first_caller] = Connect("bbr");
  const auto [second, second_caller] = Connect("bbr");
  AvoidBbrTo({PeerNameOfSocket(first_caller.fd())});
  EXPECT_THAT(ControlOf(first_caller.fd()), Not(StartsWith("bbr")));
  EXPECT_EQ(ControlOf(first.fd()), "bbr");
  EXPECT_EQ(ControlOf(second_caller.fd()), "bbr");
}

TEST(CongestionControlTest, AListenerAndWhatItAcceptsHaveNoBbr) {
  if (!testing::Matches(testing::Contains("bbr"))(Controls())) GTEST_SKIP() << "this kernel has no BBR";
  Socket listening = Listen("bbr");
  const Socket early = Call(listening.fd(), "bbr");
  auto listener = TcpListener::Adopt(std::move(listening), "127.0.0.1:1");
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_THAT(ControlOf(listener->fd()), Not(StartsWith("bbr")));
  EXPECT_THAT(ControlOf(listener->Accept().fd()), Not(StartsWith("bbr"))) << "it came before the listener was adopted";
}

TEST(CongestionControlTest, WhatIsDialledHasNoBbr) {
  if (!DefaultControl().starts_with("bbr")) GTEST_SKIP() << "this system's default is " << DefaultControl();
  auto listener = TcpListener::Listen("127.0.0.1:0");
  ASSERT_TRUE(listener.ok()) << listener.status();
  const std::vector<DialResult> called = DialAll(std::vector{listener->address()}, absl::Seconds(10));
  ASSERT_EQ(called.front().error, "");
  EXPECT_THAT(ControlOf(called.front().socket.fd()), Not(StartsWith("bbr")));
}

}  // namespace
}  // namespace starring
