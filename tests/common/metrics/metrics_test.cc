#include "common/metrics/metrics.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(MetricsTest, ListensOnLoopbackAndSaysWhere) {
  const auto metrics = Metrics::Start({});
  ASSERT_TRUE(metrics.ok()) << metrics.status();
  EXPECT_THAT((*metrics)->url(), StartsWith("http://127.0.0.1:"));
}

// The library may be compiled without IPv6.
TEST(MetricsTest, AnIpv6AddressIsServedOrRefusedWithTheWayOut) {
  for (const std::string address : {"::1", "[::1]"}) {
    const auto metrics = Metrics::Start({.address = address});
    if (metrics.ok()) {
      EXPECT_THAT((*metrics)->url(), StartsWith("http://[::1]:"));
    } else {
      EXPECT_THAT(std::string(metrics.status().message()), HasSubstr("at [::1]:0"));
      EXPECT_THAT(std::string(metrics.status().message()), HasSubstr("another --metrics_address of IPv4"));
    }
  }
}

TEST(MetricsTest, ATakenPortIsRefusedWithTheWayOut) {
  const auto first = Metrics::Start({});
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string& url = (*first)->url();
  const int port = std::stoi(url.substr(url.rfind(':') + 1));
  const auto second = Metrics::Start({.port = port});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(std::to_string(port)));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("another --metrics_port"));
}

}  // namespace
}  // namespace starring
