#include "common/network/port_range.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;

TEST(PortRangeTest, IsReadAndWritten) {
  for (const char* const text : {"", "7000-7100", "1-65535", "80-80"}) {
    PortRange range;
    std::string error;
    EXPECT_TRUE(AbslParseFlag(text, &range, &error)) << text;
    EXPECT_EQ(AbslUnparseFlag(range), text);
    EXPECT_EQ(range.IsAny(), *text == '\0');
  }
  for (const char* const text : {"7000", "7100-7000", "0-10", "7000-65536", "7000-", "-7000", "-", "7000-7001-7002",
                                 "a-b", "+1-2", "1 -2", "7000:7100", "99999999999-99999999999"}) {
    PortRange range;
    std::string error;
    EXPECT_FALSE(AbslParseFlag(text, &range, &error)) << text;
    EXPECT_EQ(error, "it must be: first-last, such as 7000-7100, from 1 to 65535");
    EXPECT_TRUE(range.IsAny());
  }
}

TEST(PortRangeTest, TheFirstPortThatIsNotTakenIsChosen) {
  std::vector<int> tried;
  const auto listen_at = [&](int port) {
    tried.push_back(port);
    return port < 7002 ? absl::AlreadyExistsError("taken") : absl::OkStatus();
  };
  EXPECT_TRUE(ListenInRange({.first = 7000, .last = 7100}, listen_at).ok());
  EXPECT_THAT(tried, ElementsAre(7000, 7001, 7002));
  tried.clear();
  EXPECT_EQ(ListenInRange({.first = 7000, .last = 7001}, listen_at).message(),
            "no port from 7000 to 7001 is free: end what listens there, or widen --port_range=7000-7001");
  EXPECT_THAT(tried, ElementsAre(7000, 7001));
}

TEST(PortRangeTest, WithoutARangeTheSystemChooses) {
  std::vector<int> tried;
  EXPECT_TRUE(ListenInRange({}, [&](int port) {
                tried.push_back(port);
                return absl::OkStatus();
              }).ok());
  EXPECT_THAT(tried, ElementsAre(0));
}

TEST(PortRangeTest, AnErrorThatIsNotAboutThePortEndsTheSearch) {
  int tries = 0;
  const absl::Status status = ListenInRange({.first = 7000, .last = 7100}, [&](int) {
    ++tries;
    return absl::UnavailableError("another machine's address");
  });
  EXPECT_THAT(std::string(status.message()), StartsWith("another machine's"));
  EXPECT_EQ(tries, 1);
}

}  // namespace
}  // namespace starring
