#include "common/network/dial.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(10);

// Listens on 127.0.0.1 at a free port.
struct Listener {
  Listener() : socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    EXPECT_EQ(bind(socket.fd(), reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(listen(socket.fd(), 16), 0);
    EXPECT_EQ(getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &length), 0);
    port = ntohs(address.sin_port);
  }
  Socket socket;
  int port = 0;
};

bool IsOpen(int fd) { return fcntl(fd, F_GETFD) >= 0; }

TEST(SocketTest, ClosesWhatItOwns) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  {
    Socket first(fd);
    Socket second = std::move(first);
    EXPECT_EQ(first.fd(), -1);
    EXPECT_EQ(second.fd(), fd);
    EXPECT_TRUE(IsOpen(fd));
  }
  EXPECT_FALSE(IsOpen(fd));
  const int kept = Socket(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)).Release();
  EXPECT_TRUE(IsOpen(kept));
  const Socket end(kept);
}

TEST(DialTest, ConnectsWithNumbersAndNames) {
  const Listener listener;
  const std::vector<std::string> addresses = {absl::StrCat("127.0.0.1:", listener.port),
                                              absl::StrCat("localhost:", listener.port)};
  for (const DialResult& result : DialAll(addresses, kPatience)) {
    EXPECT_GE(result.socket.fd(), 0) << result.error;
    EXPECT_EQ(result.local_address, "127.0.0.1");
    EXPECT_EQ(result.error, "");
    EXPECT_NE(fcntl(result.socket.fd(), F_GETFL) & O_NONBLOCK, 0);
    EXPECT_NE(fcntl(result.socket.fd(), F_GETFD) & FD_CLOEXEC, 0);
  }
}

TEST(DialTest, APendingDialNeedsNoWaiting) {
  const Listener listener;
  int closed_port = 0;
  {
    const Listener gone;
    closed_port = gone.port;
  }
  const auto outcome = [](const std::string& address) {
    PendingDial dial(address);
    std::optional<DialResult> result = dial.Advance();
    for (int i = 0; i < 10'000 && !result.has_value(); ++i) {
      absl::SleepFor(absl::Milliseconds(1));
      result = dial.Advance();
    }
    EXPECT_TRUE(result.has_value());
    return result.has_value() ? *std::move(result) : DialResult();
  };
  const DialResult open = outcome(absl::StrCat("127.0.0.1:", listener.port));
  EXPECT_GE(open.socket.fd(), 0) << open.error;
  EXPECT_EQ(open.local_address, "127.0.0.1");
  const DialResult closed = outcome(absl::StrCat("127.0.0.1:", closed_port));
  EXPECT_LT(closed.socket.fd(), 0);
  EXPECT_EQ(closed.error_number, ECONNREFUSED);
  EXPECT_THAT(closed.error, HasSubstr("ECONNREFUSED"));
  EXPECT_NE(outcome("localhost:1").error, "") << "a name is not looked up";
}

// Results are in the order of the addresses, and one that fails does not disturb the others.
TEST(DialTest, EachAddressHasItsResult) {
  const Listener listener;
  int closed_port = 0;
  {
    const Listener gone;
    closed_port = gone.port;
  }
  const std::vector<std::string> addresses = {absl::StrCat("127.0.0.1:", closed_port),
                                              absl::StrCat("127.0.0.1:", listener.port), "no such name:1"};
  const std::vector<DialResult> results = DialAll(addresses, kPatience);
  ASSERT_EQ(results.size(), 3u);
  EXPECT_LT(results[0].socket.fd(), 0);
  EXPECT_EQ(results[0].error_number, ECONNREFUSED);
  EXPECT_THAT(results[0].error, HasSubstr("connection refused (ECONNREFUSED)"));
  EXPECT_GE(results[1].socket.fd(), 0);
  EXPECT_LT(results[2].socket.fd(), 0);
  EXPECT_THAT(results[2].error, HasSubstr("no such name: "));
}

// The listener takes no connection from its backlog, which is full.
TEST(DialTest, ReturnsAtItsTime) {
  const Listener listener;
  ASSERT_EQ(listen(listener.socket.fd(), 0), 0);
  const std::vector<std::string> addresses(8, absl::StrCat("127.0.0.1:", listener.port));
  const std::vector<DialResult> results = DialAll(addresses, absl::Milliseconds(200));
  EXPECT_LT(results.back().socket.fd(), 0);
  EXPECT_EQ(results.back().error_number, ETIMEDOUT);
}

// Without it, closing a connection with unread bytes would reset it.
TEST(SocketTest, HangingUpLetsTheOtherEndReadToTheEnd) {
  const Listener listener;
  const std::vector<std::string> address = {absl::StrCat("127.0.0.1:", listener.port)};
  DialResult dialled = std::move(DialAll(address, kPatience).front());
  ASSERT_GE(dialled.socket.fd(), 0) << dialled.error;
  const Socket other(accept4(listener.socket.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  // Unread bytes of more than one turn of the loop that drops them.
  const std::string unread(10'000, 'x');
  ASSERT_EQ(send(other.fd(), unread.data(), unread.size(), MSG_NOSIGNAL), std::ssize(unread));
  for (int i = 0, waiting = 1; i < 10'000 && waiting > 0; ++i) {
    ASSERT_EQ(ioctl(other.fd(), SIOCOUTQ, &waiting), 0);
    absl::SleepFor(absl::Milliseconds(waiting > 0 ? 1 : 0));
  }
  ASSERT_EQ(send(dialled.socket.fd(), "bye", 3, MSG_NOSIGNAL), 3);
  HangUp(dialled.socket);
  dialled.socket = Socket();
  char got[8] = "";
  EXPECT_EQ(recv(other.fd(), got, sizeof(got), 0), 3);
  EXPECT_EQ(recv(other.fd(), got, sizeof(got), 0), 0);
}

// Bytes for which the other end has no room are still in this end's kernel. Closing the connection would destroy them.
TEST(SocketTest, HangingUpAllWaitsUntilEverythingIsDelivered) {
  const Listener listener;
  const std::vector<std::string> address = {absl::StrCat("127.0.0.1:", listener.port)};
  DialResult dialled = std::move(DialAll(address, kPatience).front());
  ASSERT_GE(dialled.socket.fd(), 0) << dialled.error;
  const Socket other(accept4(listener.socket.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_EQ(send(other.fd(), "unread", 6, MSG_NOSIGNAL), 6);
  const std::string much(8 << 20, 'x');
  const ssize_t sent = send(dialled.socket.fd(), much.data(), much.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  ASSERT_GT(sent, 0);
  ASSERT_FALSE(IsDelivered(dialled.socket));
  const absl::Time start = absl::Now();
  HangUpAll({&dialled.socket}, absl::Milliseconds(50));  // the other end reads nothing
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(50));
  std::jthread closer([&] {
    HangUpAll({&dialled.socket}, kPatience);
    EXPECT_TRUE(IsDelivered(dialled.socket));
    dialled.socket = Socket();
  });
  absl::SleepFor(absl::Milliseconds(50));
  std::string got(much.size(), '.');
  EXPECT_EQ(recv(other.fd(), got.data(), static_cast<size_t>(sent), MSG_WAITALL), sent);
}

TEST(SocketTest, AConnectionThatIsOverHasDeliveredWhatItCan) {
  const Listener listener;
  const std::vector<std::string> address = {absl::StrCat("127.0.0.1:", listener.port)};
  const DialResult dialled = std::move(DialAll(address, kPatience).front());
  ASSERT_GE(dialled.socket.fd(), 0) << dialled.error;
  Socket other(accept4(listener.socket.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  const std::string much(8 << 20, 'x');
  ASSERT_GT(send(dialled.socket.fd(), much.data(), much.size(), MSG_NOSIGNAL | MSG_DONTWAIT), 0);
  other = Socket();  // with unread bytes: a reset
  const absl::Time start = absl::Now();
  HangUpAll({&dialled.socket}, kPatience);
  EXPECT_LT(absl::Now() - start, kPatience);
  EXPECT_TRUE(IsDelivered(dialled.socket));
}

TEST(DialTest, ErrorsHaveTextAndName) {
  EXPECT_EQ(ErrnoText(ECONNRESET), "connection reset by peer (ECONNRESET)");
  EXPECT_THAT(ErrnoText(123456), HasSubstr("errno 123456"));
  // Errors that are values of one another on Linux have one name, as in the C library.
  EXPECT_EQ(ErrnoText(EWOULDBLOCK), ErrnoText(EAGAIN));
  EXPECT_THAT(ErrnoText(ENOTSUP), HasSubstr("(EOPNOTSUPP)"));
}

TEST(DialTest, NamesOfErrorsAreThoseOfTheCLibrary) {
  int named = 0;
  for (int number = 1; number < 200; ++number) {
    const std::string text = ErrnoText(number);
    if (absl::StrContains(text, absl::StrCat("(errno ", number, ")"))) continue;
    // This library's other name for EOPNOTSUPP is ENOTSUP.
    const std::string name = number == EOPNOTSUPP ? "EOPNOTSUPP" : strerrorname_np(number);
    EXPECT_THAT(text, HasSubstr(absl::StrCat("(", name, ")")));
    ++named;
  }
  EXPECT_GE(named, 40);
}

}  // namespace
}  // namespace starring
