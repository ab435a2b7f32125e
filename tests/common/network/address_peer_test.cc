#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <set>
#include <string>
#include <utility>

#include "common/network/address.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

// Both ends of a connection on loopback: the one that listened, and the one that called it.
std::pair<int, int> Connect() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  socklen_t length = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(listener, any, length), 0);
  EXPECT_EQ(listen(listener, 1), 0);
  EXPECT_EQ(getsockname(listener, any, &length), 0);
  const int caller = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(connect(caller, any, length), 0);
  const int called = accept(listener, nullptr, nullptr);
  close(listener);
  return {called, caller};
}

bool IsShutDown(int fd) {
  pollfd state = {.fd = fd, .events = POLLRDHUP, .revents = 0};
  return poll(&state, 1, 0) == 1;
}

TEST(PeerNameTest, ReadsWhatGrpcSays) {
  EXPECT_EQ(PeerNameOfUri("ipv4:127.0.0.1:4711"), "127.0.0.1:4711");
  EXPECT_EQ(PeerNameOfUri("ipv6:%5B::1%5D:4711"), "[::1]:4711");
  EXPECT_EQ(PeerNameOfUri("ipv6:[::1]:4711"), "[::1]:4711");
  EXPECT_EQ(PeerNameOfUri("ipv6:%5Bfe80::1%25eth0%5D:4711"), "[fe80::1]:4711");
  EXPECT_EQ(PeerNameOfUri(""), "");
  EXPECT_EQ(PeerNameOfUri("unix:"), "");
}

TEST(PeerNameTest, NamesThePeerOfASocket) {
  const auto [called, caller] = Connect();
  sockaddr_in own = {};
  socklen_t length = sizeof(own);
  ASSERT_EQ(getsockname(caller, reinterpret_cast<sockaddr*>(&own), &length), 0);
  EXPECT_EQ(PeerNameOfSocket(called), "127.0.0.1:" + std::to_string(ntohs(own.sin_port)));
  EXPECT_EQ(PeerNameOfSocket(-1), "");
  EXPECT_EQ(PeerNameOfSocket(STDIN_FILENO), "");
  close(called);
  close(caller);
}

TEST(PeerNameTest, CutsTheConnectionsToOnePeerOnly) {
  const auto [first, first_caller] = Connect();
  const auto [second, second_caller] = Connect();
  CutConnectionsTo({PeerNameOfSocket(first_caller)});
  EXPECT_TRUE(IsShutDown(first_caller));
  EXPECT_TRUE(IsShutDown(first));
  EXPECT_FALSE(IsShutDown(second_caller));
  CutConnectionsTo({""});  // the name of an unknown peer, which must not match every socket without a peer
  EXPECT_FALSE(IsShutDown(second_caller));
  for (const int fd : {first, first_caller, second, second_caller}) close(fd);
}

// A worker's connection to its coordinator leads to the same address as the lanes to shard 0.
TEST(PeerNameTest, LeavesTheConnectionsThatWereThereBefore) {
  const auto [before, before_caller] = Connect();
  const std::set<std::string> others = OwnConnections();
  const auto [after, after_caller] = Connect();
  CutConnectionsTo({PeerNameOfSocket(before_caller), PeerNameOfSocket(after_caller)}, others);
  EXPECT_FALSE(IsShutDown(before_caller));
  EXPECT_TRUE(IsShutDown(after_caller));
  for (const int fd : {before, before_caller, after, after_caller}) close(fd);
}

}  // namespace
}  // namespace starring
