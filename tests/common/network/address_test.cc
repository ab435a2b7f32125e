#include "common/network/address.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

TEST(HostPortTest, TakesNamesAndAddresses) {
  const auto host_port = [](const char* text) {
    const auto parsed = ParseHostPort(text);
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    return std::pair(parsed->host, parsed->port);
  };
  EXPECT_EQ(host_port("127.0.0.1:7077"), std::pair(std::string("127.0.0.1"), 7077));
  EXPECT_EQ(host_port("node-3.cluster:0"), std::pair(std::string("node-3.cluster"), 0));
  EXPECT_EQ(host_port("[::1]:65535"), std::pair(std::string("::1"), 65535));
}

TEST(HostPortTest, RefusesAndQuotesTheRest) {
  for (const char* text :
       {"", ":", ":7077", "localhost", "127.0.0.1:99999", "127.0.0.1:65536", "a:-1", "a:+1", "a: 1", "a:", "a:7x",
        "a:99999999999999999999", "::1:7077", "[::1:7077", "[]:1", "unix:/tmp/socket"}) {
    const auto parsed = ParseHostPort(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(parsed.status().message()), ::testing::HasSubstr(std::string("\"") + text + "\""));
  }
}

TEST(IsLoopbackHostTest, OnlyThisMachineReachesALoopbackHost) {
  for (const char* host : {"127.0.0.1", "127.3.4.5", "localhost", "[::1]", "::1", "[::ffff:127.0.0.1]"}) {
    EXPECT_TRUE(IsLoopbackHost(host)) << host;
  }
  for (const char* host : {"0.0.0.0", "[::]", "10.0.0.1", "127.example.org", "localhost.example.org", "host", "",
                           "[fe80::1]", "[::ffff:10.0.0.1]", "128.0.0.1"}) {
    EXPECT_FALSE(IsLoopbackHost(host)) << host;
  }
}

TEST(IsAnyHostTest, KnowsBothSpellings) {
  EXPECT_TRUE(IsAnyHost("0.0.0.0"));
  EXPECT_TRUE(IsAnyHost("::"));
  for (const char* host : {"127.0.0.1", "::1", "10.0.0.0", "host", ""}) EXPECT_FALSE(IsAnyHost(host)) << host;
}

}  // namespace
}  // namespace starring
