// The sockets of ranks that meet: children of fork have none of them, and an address that swallows packets is named.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <thread>

#include "common/network/address.h"
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
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// How many sockets of IPv4 this process has. Calls what may be called between fork and exec.
int OpenSockets() {
  int count = 0;
  for (int fd = 0; fd < 256; ++fd) {
    int domain = 0;
    socklen_t length = sizeof(domain);
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 && domain == AF_INET) ++count;
  }
  return count;
}

int OpenSocketsOfAChild() {
  const pid_t child = fork();
  if (child == 0) _exit(OpenSockets());
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << status;
  return WEXITSTATUS(status);
}

// As a DataLoader's workers that start while ranks meet: they would keep the connections of a rank that has ended.
TEST(TcpRendezvousSocketsTest, ChildrenOfForkHaveNoneWhileRanksMeet) {
  Job job(3);
  EXPECT_EQ(OpenSockets(), 1);
  EXPECT_EQ(OpenSocketsOfAChild(), 0);
  job.Start(0);
  job.Start(1);
  {
    BareRank two(job.address(), HelloOf(2, 3));
    ASSERT_EQ(two.AwaitWelcome(), absl::OkStatus());
    ASSERT_TRUE(two.AwaitTable());
    // The listeners of ranks 0 and 1, and both ends of two registrations and of two connections between 0 and 1.
    EXPECT_TRUE(Until([] { return OpenSockets() == 2 + 4 + 4; }, [] { usleep(1000); })) << OpenSockets();
    EXPECT_EQ(OpenSocketsOfAChild(), 0);
  }
  job.Join();
}

// Without SO_REUSEADDR no other socket could be bound to the port: rank 0 cannot have made one.
TEST(TcpRendezvousSocketsTest, RankZeroListensAtTheSocketThatItInherits) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in place = {};
  place.sin_family = AF_INET;
  place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(place);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&place), length), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&place), &length), 0);
  const std::string address = "127.0.0.1:" + std::to_string(ntohs(place.sin_port));
  EXPECT_FALSE(TcpListener::Listen(address).ok());
  Joined one = absl::UnknownError("");
  std::thread other([&] { one = ConnectFullMesh({.rank = 1, .world_size = 2, .rendezvous = address}); });
  const Joined zero = ConnectFullMesh({.rank = 0, .world_size = 2, .rendezvous = address, .bound_fd = fd});
  other.join();
  EXPECT_TRUE(zero.ok()) << zero.status();
  EXPECT_TRUE(one.ok()) << one.status();
}

// A socket that listens and whose backlog is full: as behind a firewall, no answer comes to a connection.
class BlackHole {
 public:
  BlackHole() : listener_(*TcpListener::Listen("127.0.0.1:0")) {
    EXPECT_EQ(listen(listener_.fd(), 0), 0);
    full_ = Dial(listener_.address());
  }
  const std::string& address() const { return listener_.address(); }

 private:
  TcpListener listener_;
  Socket full_;
};

int PortOf(const std::string& address) { return ParseHostPort(address)->port; }

TEST(TcpRendezvousSocketsTest, ARankListensInItsRange) {
  const ReservedAddress free;
  Job job(3);
  job.Start(0);
  TcpRendezvousOptions one = job.Options(1);
  one.ports = {.first = PortOf(free.text), .last = PortOf(free.text)};
  job.Start(1, std::move(one));
  {
    BareRank two(job.address(), HelloOf(2, 3));
    ASSERT_EQ(two.AwaitWelcome(), absl::OkStatus());
    ASSERT_TRUE(two.AwaitTable());
    EXPECT_THAT(two.table(), ElementsAre(job.address(), free.text, HelloOf(2, 3).address));
  }
  job.Join();
}

TEST(TcpRendezvousSocketsTest, ARangeThatIsUsedUpIsNamed) {
  const auto taken = TcpListener::Listen("127.0.0.1:0");
  Job job(2);
  TcpRendezvousOptions one = job.Options(1);
  one.ports = {.first = PortOf(taken->address()), .last = PortOf(taken->address())};
  job.Start(1, std::move(one));
  job.Join();
  EXPECT_TRUE(absl::IsInvalidArgument(job.result(1).status())) << job.result(1).status();
  EXPECT_THAT(job.error(1), AllOf(HasSubstr("no port from " + std::to_string(PortOf(taken->address())) + " to "),
                                  HasSubstr("widen --port_range")));
}

// A rank registers anew when rank 0 is started again. Its own first listener must not use up the range.
TEST(TcpRendezvousSocketsTest, ARankThatRegistersAgainNeedsNoSecondPort) {
  const ReservedAddress free;
  Job job(2);
  TcpRendezvousOptions zero = job.Options(0), one = job.Options(1);
  one.ports = {.first = PortOf(free.text), .last = PortOf(free.text)};
  job.Start(1, std::move(one));
  Socket first;
  char byte;
  // The hello says where rank 1 listens.
  ASSERT_TRUE(Until([&] { return first.fd() >= 0; }, [&] { first = zero.listener->Accept(); }));
  ASSERT_TRUE(Until([&] { return recv(first.fd(), &byte, 1, MSG_PEEK) == 1; }, [] { usleep(1000); }));
  first = Socket();
  job.Start(0, std::move(zero));
  job.Join();
  job.ExpectConnected();
}

TEST(TcpRendezvousSocketsTest, ARankZeroWhosePacketsAreLostIsSaidToBeBehindAFirewall) {
  const BlackHole hole;
  const ReservedAddress refusing;
  const auto error = [](const std::string& rendezvous) {
    return Text(ConnectFullMesh(
                    {.rank = 1, .world_size = 2, .rendezvous = rendezvous, .join_deadline = absl::Milliseconds(300)})
                    .status());
  };
  EXPECT_THAT(error(hole.address()),
              AllOf(HasSubstr("did not find rank 0 at --rendezvous=" + hole.address()),
                    HasSubstr("a firewall may drop the packets: start the processes with --check instead")));
  EXPECT_THAT(error(refusing.text), AllOf(HasSubstr("ECONNREFUSED"), Not(HasSubstr("firewall"))));
}

TEST(TcpRendezvousSocketsTest, ARankWhosePacketsAreLostIsNamedToAll) {
  const BlackHole hole;
  Job job(3);
  job.Start(0);
  TcpHello lost = HelloOf(1, 3);
  lost.address = hole.address();
  TcpDialer one(Dial(job.address()), lost, kToken);
  TcpRendezvousOptions two = job.Options(2);
  two.join_deadline = absl::Seconds(1);
  job.Start(2, std::move(two));
  // Rank 1 reads until its last error.
  absl::StatusOr<bool> welcome = false;
  ASSERT_TRUE(Until([&] { return welcome.ok() && *welcome; }, [&] { welcome = one.Advance(); })) << welcome.status();
  absl::StatusOr<std::optional<TcpFrame>> frame = std::optional<TcpFrame>();
  Until([&] { return !frame.ok(); }, [&] { frame = one.connection().Receive(kTcpTableBytesMax); });
  job.Join();
  for (const std::string& last : {Text(frame.status()), job.error(0), job.error(2)}) {
    EXPECT_THAT(last, AllOf(HasSubstr("rank 2 cannot connect with rank 1 at " + hole.address()), HasSubstr("ETIMEDOUT"),
                            HasSubstr("every rank must be able to reach every other one, at any port, or those of "
                                      "--port_range: a firewall may drop the packets: start the processes with "
                                      "--check instead")));
  }
}

}  // namespace
}  // namespace starring
