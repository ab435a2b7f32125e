#include "common/reduce/arrays/element_sum.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace starring {
namespace {

constexpr InstructionSet kSets[] = {InstructionSet::kBaseline, InstructionSet::kAvx2, InstructionSet::kAvx512};
constexpr ElementType kTypes[] = {ElementType::kFloat32, ElementType::kBfloat16, ElementType::kFloat16};

std::vector<InstructionSet> SetsOfThisCpu() {
  std::vector<InstructionSet> sets;
  for (const InstructionSet set : kSets) {
    if (set <= BestInstructionSet()) sets.push_back(set);
  }
  return sets;
}

float WidenOne(ElementType type, uint16_t bits, InstructionSet set) {
  float value = 0.0f;
  Widen(type, reinterpret_cast<const std::byte*>(&bits), {&value, 1}, set);
  return value;
}

uint16_t NarrowOne(ElementType type, float value, InstructionSet set) {
  uint16_t bits = 0;
  Finish({.type = type}, {&value, 1}, reinterpret_cast<std::byte*>(&bits), set);
  return bits;
}

// By the definition of IEEE 754 and of bfloat16, without a trick: sign, exponent and fraction.
double ValueOf(ElementType type, uint16_t bits) {
  const int fraction_bits = type == ElementType::kFloat16 ? 10 : 7;
  const int exponent_max = (1 << (15 - fraction_bits)) - 1;
  const int exponent = (bits & 0x7fff) >> fraction_bits;
  const double fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  const int bias = exponent_max / 2;
  if (exponent == exponent_max) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp(1.0 + std::ldexp(fraction, -fraction_bits), exponent - bias);
}

TEST(ElementSumTest, EveryShortNumberIsWidenedExactly) {
  for (const ElementType type : {ElementType::kBfloat16, ElementType::kFloat16}) {
    for (const InstructionSet set : SetsOfThisCpu()) {
      for (int bits = 0; bits < 1 << 16; ++bits) {
        const double expected = ValueOf(type, static_cast<uint16_t>(bits));
        const float widened = WidenOne(type, static_cast<uint16_t>(bits), set);
        if (std::isnan(expected)) {
          ASSERT_TRUE(std::isnan(widened)) << bits;
        } else {
          ASSERT_EQ(widened, expected) << bits;
          ASSERT_EQ(std::signbit(widened), (bits & 0x8000) != 0) << bits;
        }
      }
    }
  }
}

// Every number, the middle between it and the next one, and the floats next to both.
TEST(ElementSumTest, RoundsToTheNearestAndTiesToEven) {
  for (const ElementType type : {ElementType::kBfloat16, ElementType::kFloat16}) {
    const uint16_t infinity = type == ElementType::kFloat16 ? 0x7c00 : 0x7f80;
    for (const InstructionSet set : SetsOfThisCpu()) {
      for (uint16_t bits = 0; bits < infinity; ++bits) {
        const auto next_bits = static_cast<uint16_t>(bits + 1);
        const double value = ValueOf(type, bits);
        // Beyond the largest number, the middle is where the next one would be if there were one.
        const double next = next_bits < infinity ? ValueOf(type, next_bits)
                                                 : 2 * value - ValueOf(type, static_cast<uint16_t>(bits - 1));
        const auto middle = static_cast<float>((value + next) / 2);
        const uint16_t even = bits % 2 == 0 ? bits : next_bits;
        ASSERT_EQ(NarrowOne(type, static_cast<float>(value), set), bits);
        ASSERT_EQ(NarrowOne(type, middle, set), even) << bits;
        ASSERT_EQ(NarrowOne(type, -middle, set), even | 0x8000) << bits;
        ASSERT_EQ(NarrowOne(type, std::nextafter(middle, 0.0f), set), bits) << bits;
        ASSERT_EQ(NarrowOne(type, std::nextafter(middle, INFINITY), set), next_bits) << bits;
      }
      ASSERT_EQ(NarrowOne(type, INFINITY, set), infinity);
      ASSERT_EQ(NarrowOne(type, -INFINITY, set), infinity | 0x8000);
      // The last one has its only bits where rounding drops them.
      for (const uint32_t nan : {0x7fc00000u, 0xffffffffu, 0x7f800001u}) {
        const float rounded = WidenOne(type, NarrowOne(type, std::bit_cast<float>(nan), set), set);
        ASSERT_TRUE(std::isnan(rounded)) << nan;
      }
    }
  }
}

std::vector<float> Wild(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    value = std::ldexp(static_cast<float>(random() % 4096) - 2047.5f, static_cast<int>(random() % 20) - 16);
  }
  return values;
}

std::vector<std::byte> Narrowed(ElementType type, std::vector<float> values) {
  std::vector<std::byte> elements(values.size() * ElementBytes(type));
  Finish({.type = type}, values, elements.data());
  return elements;
}

// Counts around the blocks of the loops, and vectors that do not fill a register.
TEST(ElementSumTest, AllInstructionSetsAddAsTheTreeDoesElementByElement) {
  for (const ElementType type : kTypes) {
    for (const size_t count : {0, 1, 31, 512, 513, 2048, 5000}) {
      std::vector<std::vector<std::byte>> contributions;
      std::vector<const std::byte*> inputs;
      std::vector<std::vector<float>> widened(5, std::vector<float>(count));
      for (size_t rank = 0; rank < 5; ++rank) {
        contributions.push_back(Narrowed(type, Wild(count, 10 * count + rank)));
        Widen(type, contributions.back().data(), widened[rank]);
      }
      for (const auto& contribution : contributions) inputs.push_back(contribution.data());
      for (const float divisor : {1.0f, 4.0f, 5.0f}) {
        std::vector<float> expected(count);
        for (size_t i = 0; i < count; ++i) {
          const auto& w = widened;
          expected[i] = (((w[0][i] + w[1][i]) + (w[2][i] + w[3][i])) + w[4][i]) / divisor;
        }
        const std::vector<std::byte> rounded = Narrowed(type, expected);
        for (const InstructionSet set : SetsOfThisCpu()) {
          std::vector<std::byte> sum(rounded.size());
          SumContributions(inputs, static_cast<int64_t>(count), {.type = type, .divisor = divisor}, sum.data(), set);
          ASSERT_TRUE(sum == rounded) << ElementTypeName(type) << " " << count << " / " << divisor;
        }
      }
    }
  }
}

TEST(ElementSumTest, TheSumMayTakeThePlaceOfAnyContribution) {
  constexpr size_t kCount = 3000;
  for (const ElementType type : kTypes) {
    for (size_t place = 0; place < 5; ++place) {
      std::vector<std::vector<std::byte>> contributions;
      std::vector<const std::byte*> inputs;
      for (size_t rank = 0; rank < 5; ++rank) contributions.push_back(Narrowed(type, Wild(kCount, rank)));
      for (const auto& contribution : contributions) inputs.push_back(contribution.data());
      std::vector<std::byte> expected(contributions[0].size());
      SumContributions(inputs, kCount, {.type = type}, expected.data());
      SumContributions(inputs, kCount, {.type = type}, contributions[place].data());
      EXPECT_TRUE(contributions[place] == expected) << place;
    }
  }
}

TEST(ElementSumTest, AddsWidenedElements) {
  for (const ElementType type : kTypes) {
    const std::vector<std::byte> elements = Narrowed(type, Wild(1500, 1));
    std::vector<float> added(1500);
    Widen(type, elements.data(), added);
    for (const InstructionSet set : SetsOfThisCpu()) {
      std::vector<float> sum = Wild(1500, 2), expected = sum;
      for (size_t i = 0; i < sum.size(); ++i) expected[i] += added[i];
      AddElements(type, elements.data(), sum, set);
      EXPECT_EQ(sum, expected);
    }
  }
}

// A divisor whose reciprocal is subnormal, or no float at all, is divided by.
TEST(ElementSumTest, DividesExactly) {
  for (const float divisor : {2.0f, 0x1p-126f, 0x1p126f, 0x1p127f, 0x1p-149f, 3.0f, 1e30f}) {
    for (const float value : {1.0f, 0x1.fffffep127f, 0x1p-140f, -7.0f}) {
      float sum = value, quotient = 0.0f;
      Finish({.type = ElementType::kFloat32, .divisor = divisor}, {&sum, 1}, reinterpret_cast<std::byte*>(&quotient));
      EXPECT_EQ(std::bit_cast<uint32_t>(quotient), std::bit_cast<uint32_t>(value / divisor)) << value << "/" << divisor;
    }
  }
}

TEST(ElementSumTest, TypesHaveNames) {
  EXPECT_EQ(std::string(ElementTypeName(ElementType::kBfloat16)), "bfloat16");
  EXPECT_EQ(std::string(ElementTypeName(static_cast<ElementType>(7))), "an unknown type");
}

}  // namespace
}  // namespace starring
