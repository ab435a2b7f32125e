#include "common/arithmetic/philox.h"

#include <set>

#include "gtest/gtest.h"

namespace starring {
namespace {

// From Random123 1.14, its file of known answers (kat_vectors), "philox4x32 10".
TEST(PhiloxTest, PublishedVectors) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}), (PhiloxWords{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (PhiloxWords{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxWords{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(PhiloxTest, EveryPartOfTheKeyCounts) {
  const RandomKey base = {.seed = 1, .purpose = RandomPurpose::kShuffle, .stream = 2, .epoch = 3};
  std::set<PhiloxWords> seen;
  RandomKey key = base;
  seen.insert(key.At(0));
  seen.insert(key.At(1));
  seen.insert(key.At(uint64_t{1} << 32));
  key.seed = uint64_t{1} << 32;
  seen.insert(key.At(0));
  key = base;
  key.seed = 2;
  seen.insert(key.At(0));
  key = base;
  key.purpose = RandomPurpose::kAugment;
  seen.insert(key.At(0));
  key = base;
  key.stream = 3;
  seen.insert(key.At(0));
  key = base;
  key.epoch = 4;
  seen.insert(key.At(0));
  EXPECT_EQ(seen.size(), 8u);
}

TEST(PhiloxTest, UnitFloatStaysBelowOne) {
  EXPECT_EQ(UnitFloat(0), 0.0f);
  EXPECT_EQ(UnitFloat(~0u), 1.0f - 0x1.0p-24f);
  EXPECT_EQ(UnitFloat(1u << 31), 0.5f);
}

TEST(PhiloxTest, BelowNCoversTheRangeAndNoMore) {
  EXPECT_EQ(BelowN(0, 10), 0u);
  EXPECT_EQ(BelowN(~0u, 10), 9u);
  EXPECT_EQ(BelowN(~0u, 1), 0u);
}

// 4096 buckets of 16 expected: chi-square with 4095 degrees of freedom, six deviations allowed.
TEST(PhiloxTest, WordsAreUniform) {
  const RandomKey key = {.seed = 20261121};
  std::array<int, 4096> counts = {};
  for (uint64_t i = 0; i < 4096 * 4; ++i) {
    for (const uint32_t word : key.At(i)) ++counts[BelowN(word, 4096)];
  }
  double chi_square = 0;
  for (const int count : counts) chi_square += (count - 16.0) * (count - 16.0) / 16.0;
  EXPECT_NEAR(chi_square, 4095, 6 * 90.5);
}

}  // namespace
}  // namespace starring
