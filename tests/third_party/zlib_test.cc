#include <zlib.h>

#include "gtest/gtest.h"

namespace starring {
namespace {

TEST(Zlib, Crc32OfTheCheckString) {
  const unsigned char check[] = "123456789";
  EXPECT_EQ(crc32(0, check, 9), 0xcbf43926u);
}

}  // namespace
}  // namespace starring
