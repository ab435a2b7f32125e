#include "common/network/close_on_fork.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "common/network/dial.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

bool IsOpen(int fd) { return fcntl(fd, F_GETFD) >= 0; }

// Whether `holds` is true in a child of fork.
bool HoldsInChild(const std::function<bool()>& holds) {
  const pid_t child = fork();
  if (child == 0) _exit(holds() ? 0 : 1);
  int status = -1;
  return waitpid(child, &status, 0) == child && status == 0;
}

struct Pair {
  Socket near;
  Socket far;
};

Pair Connect() {
  int fds[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  return {.near = Socket(fds[0]), .far = Socket(fds[1])};
}

TEST(CloseOnForkTest, IsClosedInAChildAloneAndOthersStayOpen) {
  const Pair pair = Connect();
  const CloseOnFork mark(pair.near.fd());
  EXPECT_TRUE(HoldsInChild([&] { return !IsOpen(pair.near.fd()) && IsOpen(pair.far.fd()); }));
  EXPECT_TRUE(IsOpen(pair.near.fd()));
}

TEST(CloseOnForkTest, NoLongerThanItLives) {
  const Pair pair = Connect();
  { const CloseOnFork mark(pair.near.fd()); }
  EXPECT_TRUE(HoldsInChild([&] { return IsOpen(pair.near.fd()); }));
}

TEST(CloseOnForkTest, MovesItsMark) {
  const Pair pair = Connect();
  std::optional<CloseOnFork> first(pair.near.fd());
  const CloseOnFork second(std::move(*first));
  first.reset();
  EXPECT_TRUE(HoldsInChild([&] { return !IsOpen(pair.near.fd()); }));
}

// A child's new descriptors may have the numbers of closed ones, and the child may fork, too.
TEST(CloseOnForkTest, AChildMarksDescriptorsOfItsOwn) {
  const Pair pair = Connect();
  const CloseOnFork mark(pair.near.fd());
  EXPECT_TRUE(HoldsInChild([&] {
    const Pair own = Connect();
    const bool stays_open = HoldsInChild([&] { return IsOpen(own.near.fd()); });
    const CloseOnFork own_mark(own.near.fd());
    return own.near.fd() == pair.near.fd() && stays_open && HoldsInChild([&] { return !IsOpen(own.near.fd()); });
  }));
}

TEST(CloseOnForkTest, OtherThreadsMayMarkWhileOneForks) {
  std::atomic<bool> stop = false;
  std::thread other([&] {
    const Pair pair = Connect();
    while (!stop) const CloseOnFork mark(pair.near.fd());
  });
  const Pair pair = Connect();
  for (int i = 0; i < 50; ++i) {
    // The child would wait for ever for a lock that the other thread held.
    EXPECT_TRUE(HoldsInChild([&] {
      const CloseOnFork mark(pair.near.fd());
      return true;
    }));
  }
  stop = true;
  other.join();
}

TEST(CloseOnForkTest, AConnectionIsOverWithItsProcessAlthoughAChildGoesOn) {
  Pair pair = Connect();
  std::optional<CloseOnFork> mark(pair.near.fd());
  Pair wait = Connect();
  const pid_t child = fork();
  if (child == 0) {
    char byte;
    _exit(read(wait.far.fd(), &byte, 1) == 1 ? 0 : 1);
  }
  mark.reset();
  close(pair.near.Release());
  pollfd end = {.fd = pair.far.fd(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&end, 1, 10'000), 1);
  char byte = 0;
  EXPECT_EQ(read(pair.far.fd(), &byte, 1), 0);
  // The child has been there all the time.
  EXPECT_EQ(write(wait.near.fd(), &byte, 1), 1);
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace starring
