#include "worker/data/files/cell_text.h"

#include <cmath>
#include <limits>
#include <string>

#include "gtest/gtest.h"

namespace starring {
namespace {

TEST(CellTextTest, TrimsSpacesAndTabs) {
  EXPECT_EQ(TrimCell(" \t a b\t "), "a b");
  EXPECT_EQ(TrimCell(" \t"), "");
  EXPECT_EQ(TrimCell("a\n"), "a\n");
}

TEST(CellTextTest, ReadsDecimalNumbers) {
  const auto read = [](const char* text) {
    float value = 77;
    EXPECT_EQ(ReadCell(text, value), CellKind::kNumber) << text;
    return value;
  };
  EXPECT_EQ(read("1"), 1.0f);
  EXPECT_EQ(read("+1.5"), 1.5f);
  EXPECT_EQ(read("-.25"), -0.25f);
  EXPECT_EQ(read("2."), 2.0f);
  EXPECT_EQ(read("1.5E-3"), 0.0015f);
  EXPECT_EQ(read("1e+2"), 100.0f);
  EXPECT_EQ(read("007"), 7.0f);
  EXPECT_EQ(read("8.982086777687072754e-01"), 0.898208678f);
  EXPECT_EQ(read("16777217"), 16777216.0f);     // rounded to the nearest, ties to even
  EXPECT_EQ(read("16777217.01"), 16777218.0f);  // rounded once, not by way of double
  EXPECT_EQ(read("3.4028235e38"), std::numeric_limits<float>::max());
  EXPECT_EQ(read("1e-45"), std::numeric_limits<float>::denorm_min());
  EXPECT_EQ(read("1e-60"), 0.0f);
  EXPECT_TRUE(std::signbit(read("-1e-60")));
  double wide = 0;
  EXPECT_EQ(ReadCell("+1e300", wide), CellKind::kNumber);
  EXPECT_EQ(wide, 1e300);
}

TEST(CellTextTest, SaysWhatIsNoNumber) {
  float value = 77;
  EXPECT_EQ(ReadCell("", value), CellKind::kEmpty);
  for (const char* const text : {"nan", "NaN", "-nan", "inf", "-Infinity", "+inf"}) {
    EXPECT_EQ(ReadCell(text, value), CellKind::kNotFinite) << text;
  }
  for (const char* const text : {"1e39", "-1e39", "3.5e38", "1e999999999999"}) {
    EXPECT_EQ(ReadCell(text, value), CellKind::kTooLarge) << text;
  }
  for (const char* const text : {"a", "+", "-", ".", "1x", "1 2", "0x10", "-0X1", "+0x1", "1e", "++1", "+-1", "-+1",
                                 "1,5", "NA", "None", "\xc3\xa9"}) {
    EXPECT_EQ(ReadCell(text, value), CellKind::kText) << text;
  }
  EXPECT_EQ(value, 77);
}

TEST(CellTextTest, ShowsTheBeginningWithEscapes) {
  EXPECT_EQ(ShowCell("a b"), "\"a b\"");
  EXPECT_EQ(ShowCell("a\"\n\x01"), R"("a\"\n\x01")");
  EXPECT_EQ(ShowCell(std::string(41, 'x')), "\"" + std::string(40, 'x') + "\"...");
}

}  // namespace
}  // namespace starring
