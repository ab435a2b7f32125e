#include "worker/exchange/star/shard_reach.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/parameter_server.h"

namespace starring {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::unique_ptr<ParameterServer> StartShard() {
  auto server = ParameterServer::Start({});
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

TEST(ShardReachTest, ServersThatAnswerAreReached) {
  const auto one = StartShard(), other = StartShard();
  EXPECT_EQ(Reach({one->address(), other->address()}, {}), absl::OkStatus());
  EXPECT_EQ(Reach({}, {}), absl::OkStatus());
}

TEST(ShardReachTest, AServerThatIsNotThereIsNamed) {
  const auto server = StartShard();
  const absl::Status status = Reach({server->address(), "127.0.0.1:1"}, {}, absl::Milliseconds(200));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "server 127.0.0.1:1 (shard 1) cannot be reached within 200ms: connections to it fail");
}

// As behind a firewall, or where a process hangs: the kernel takes the connection, and nothing comes.
TEST(ShardReachTest, AServerThatIsSilentIsNamed) {
  const int silent = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_GE(silent, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(silent, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(silent, 8), 0);
  ASSERT_EQ(getsockname(silent, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const absl::Status status = Reach({absl::StrCat("127.0.0.1:", ntohs(address.sin_port))}, {}, absl::Milliseconds(200));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("(shard 0) cannot be"), HasSubstr("it does not answer")));
  close(silent);
}

}  // namespace
}  // namespace starring
