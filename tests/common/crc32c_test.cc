#include "common/crc32c.h"

#include <string>

#include "gtest/gtest.h"

namespace starring {
namespace {

// RFC 3720, B.4.
TEST(Crc32cTest, TheExamplesOfTheStandard) {
  EXPECT_EQ(Crc32c(""), 0u);
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
}

}  // namespace
}  // namespace starring
