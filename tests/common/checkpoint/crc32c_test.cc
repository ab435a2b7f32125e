#include "common/checkpoint/crc32c.h"

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

TEST(Crc32cTest, InstructionAndTableAgreeOnEveryLengthAndInPieces) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>(i * i + 7 * i);
  const auto bytes = std::as_bytes(std::span(text));
  for (size_t begin = 0; begin < 9; ++begin) {
    for (size_t end = begin; end <= text.size(); end += end < begin + 40 ? 1 : 37) {
      const auto part = bytes.subspan(begin, end - begin);
      ASSERT_EQ(ExtendCrc32c(5, part), ExtendCrc32cByTable(5, part)) << begin << " to " << end;
    }
  }
  for (const size_t cut : {0, 1, 8, 13, 299, 300}) {
    EXPECT_EQ(ExtendCrc32c(ExtendCrc32c(0, bytes.first(cut)), bytes.subspan(cut)), Crc32c(text));
  }
}

}  // namespace
}  // namespace starring
