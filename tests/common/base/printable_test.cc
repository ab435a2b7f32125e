#include "common/base/printable.h"

#include "gtest/gtest.h"

namespace starring {
namespace {

TEST(PrintableTest, OnlyPrintableAsciiStays) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string text(1, static_cast<char>(byte));
    EXPECT_EQ(Printable(text), byte >= 32 && byte < 127 ? text : "?") << byte;
  }
}

TEST(PrintableTest, EveryByteIsLookedAt) {
  EXPECT_EQ(Printable("worker 1\x1b[2J\r\nserver 0: l'\xc3\xa9t\xc3\xa9"), "worker 1?[2J??server 0: l'??t??");
  EXPECT_EQ(Printable(""), "");
}

}  // namespace
}  // namespace starring
