#include "kernels/cuda/bfloat16.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "gtest/gtest.h"

namespace starring::cuda {
namespace {

float FromBits(uint32_t bits) { return std::bit_cast<float>(bits); }
uint16_t RoundedBits(float x) { return Rounded<Bfloat16>(x).bits; }

TEST(Bfloat16Test, EveryPatternComesBack) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const float value = FloatOf(Bfloat16{static_cast<uint16_t>(bits)});
    EXPECT_EQ(std::bit_cast<uint32_t>(value), bits << 16);
    EXPECT_EQ(RoundedBits(value), std::isnan(value) ? 0x7fff : bits) << bits;
  }
}

TEST(Bfloat16Test, TiesGoToEven) {
  EXPECT_EQ(RoundedBits(FromBits(0x3f808000)), 0x3f80);  // between 1 and the next: 1 is even
  EXPECT_EQ(RoundedBits(FromBits(0x3f818000)), 0x3f82);
  EXPECT_EQ(RoundedBits(FromBits(0x3f808001)), 0x3f81);  // just above the tie
  EXPECT_EQ(RoundedBits(FromBits(0x3f817fff)), 0x3f81);  // just below
  EXPECT_EQ(RoundedBits(FromBits(0xbf808000)), 0xbf80);
  EXPECT_EQ(RoundedBits(FromBits(0xbf818000)), 0xbf82);
  EXPECT_EQ(RoundedBits(FromBits(0x3fffffff)), 0x4000);  // the carry reaches the exponent
}

TEST(Bfloat16Test, TheLargestNumbersRoundToInfinityAndDenormalsStay) {
  using Float = std::numeric_limits<float>;
  EXPECT_EQ(RoundedBits(Float::max()), 0x7f80);
  EXPECT_EQ(RoundedBits(Float::lowest()), 0xff80);
  EXPECT_EQ(RoundedBits(FromBits(0x7f7f7fff)), 0x7f7f);  // below the last tie
  EXPECT_EQ(RoundedBits(Float::infinity()), 0x7f80);
  EXPECT_EQ(RoundedBits(-Float::infinity()), 0xff80);
  EXPECT_EQ(RoundedBits(FromBits(0x00010000)), 0x0001);
  EXPECT_EQ(RoundedBits(FromBits(0x80018000)), 0x8002);
  EXPECT_EQ(RoundedBits(FromBits(0x00008000)), 0x0000);
  EXPECT_EQ(RoundedBits(Float::denorm_min()), 0x0000);
  EXPECT_EQ(RoundedBits(-0.0f), 0x8000);
}

TEST(Bfloat16Test, EveryNanIsOne) {
  // A NaN whose upper half alone would be infinity.
  for (const uint32_t bits : {0x7f800001u, 0x7fc00000u, 0xffffffffu, 0xff800001u}) {
    EXPECT_EQ(RoundedBits(FromBits(bits)), 0x7fff) << bits;
    EXPECT_TRUE(std::isnan(FloatOf(Rounded<Bfloat16>(FromBits(bits)))));
  }
}

TEST(Bfloat16Test, NoOtherNumberIsNearer) {
  const unsigned seed = 20261129;
  std::mt19937 random(seed);
  for (int i = 0; i < 1'000'000; ++i) {
    const float x = FromBits(static_cast<uint32_t>(random()));
    const uint16_t bits = RoundedBits(x);
    if (!std::isfinite(x) || !std::isfinite(FloatOf(Bfloat16{bits}))) continue;
    const double distance = std::fabs(double{x} - double{FloatOf(Bfloat16{bits})});
    for (const int step : {-1, 1}) {
      const double other = FloatOf(Bfloat16{static_cast<uint16_t>(bits + step)});
      if (std::isfinite(other)) {
        ASSERT_LE(distance, std::fabs(double{x} - other)) << "seed " << seed << ": " << x;
      }
    }
  }
}

TEST(Bfloat16Test, APackIsItsElements) {
  Pack<float, 8> values = {{1.0f, -2.5f, 3.14159f, 0.0f, -0.0f, 1e30f, -1e-40f, FromBits(0x3f818000)}};
  alignas(16) Bfloat16 stored[8];
  StoreFloats(values, stored);
  for (int k = 0; k < 8; ++k) EXPECT_EQ(stored[k].bits, RoundedBits(values.v[k])) << k;
  const Pack<float, 8> loaded = LoadFloats<8>(stored);
  for (int k = 0; k < 8; ++k) EXPECT_EQ(loaded.v[k], FloatOf(stored[k])) << k;
  const Pack<float, 4> four = LoadFloats<4>(stored + 4);
  EXPECT_EQ(four.v[1], loaded.v[5]);
}

TEST(WithElementTest, OfOneKindAlone) {
  alignas(16) float floats[4] = {};
  const auto size = []<typename T>() { return sizeof(T) == 4 ? cudaSuccess : cudaErrorNotReady; };
  const Elements narrow(Element::kBfloat16, floats);
  EXPECT_EQ(WithElement(size, Element::kFloat32, ConstElements(floats)), cudaSuccess);
  EXPECT_EQ(WithElement(size, Element::kBfloat16, narrow), cudaErrorNotReady);
  EXPECT_EQ(WithElement(size, Element::kBfloat16, narrow, ConstElements()), cudaErrorNotReady);
  EXPECT_EQ(WithElement(size, Element::kBfloat16, narrow, ConstElements(floats)), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace starring::cuda
