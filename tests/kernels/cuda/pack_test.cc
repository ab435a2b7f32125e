#include "kernels/cuda/pack.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <set>

#include "gtest/gtest.h"

namespace starring::cuda {
namespace {

constexpr int64_t kLargest = (int64_t{1} << 31) - 1;  // dividend and divisor

bool DividesExactly(int64_t divisor, int64_t n) {
  const Divisor::Parts parts = Divisor(divisor).Split(static_cast<uint32_t>(n));
  return parts.quotient == n / divisor && parts.remainder == n % divisor;
}

TEST(DivisorTest, DividesExactlyAtEveryEdge) {
  std::set<int64_t> divisors = {1, 2, 3, 5, 7, kLargest};
  for (int k = 1; k <= 30; ++k) {
    const int64_t power = int64_t{1} << k;
    divisors.insert({power - 1, power, power + 1});
  }
  for (const int64_t divisor : divisors) {
    const int64_t multiple = kLargest / divisor * divisor;  // the largest
    for (const int64_t n :
         {int64_t{0}, int64_t{1}, divisor - 1, divisor, divisor + 1, multiple - 1, multiple, kLargest}) {
      if (n > kLargest) continue;
      ASSERT_TRUE(DividesExactly(divisor, n)) << n << " / " << divisor;
    }
  }
}

TEST(DivisorTest, DividesExactlyAtRandom) {
  const unsigned seed = 20261122;
  std::mt19937_64 random(seed);
  for (int i = 0; i < 1'000'000; ++i) {
    // As many small divisors as large ones.
    const auto shift = random() % 31;
    const int64_t divisor = std::max<int64_t>(1, static_cast<int64_t>(random() % kLargest + 1) >> shift);
    const auto n = static_cast<int64_t>(random() % (kLargest + 1));
    ASSERT_TRUE(DividesExactly(divisor, n)) << "seed " << seed << ": " << n << " / " << divisor;
  }
}

TEST(AlignmentTest, AlignedForPacksLooksAtEveryPointer) {
  alignas(16) const float values[8] = {};
  EXPECT_TRUE(AlignedForPacks(values));
  EXPECT_TRUE(AlignedForPacks(values, values + 4));
  for (int k = 1; k < kPackFloats; ++k) {
    EXPECT_FALSE(AlignedForPacks(values + k, values)) << k;
    EXPECT_FALSE(AlignedForPacks(values, values + 4, values + k)) << k;
  }
}

TEST(AlignmentTest, APackNeverCrossesToTheNextPixel) {
  alignas(16) const float values[8] = {};
  EXPECT_TRUE(AlignmentOfChannels(8, values) == Alignment::kPacks);
  EXPECT_TRUE(AlignmentOfChannels(6, values) == Alignment::kElements);
  EXPECT_TRUE(AlignmentOfChannels(8, values, values + 1) == Alignment::kElements);
}

TEST(ReluTest, ANaNPassesRelu) {
  const float not_a_number = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(ReluOf(not_a_number)));
  EXPECT_EQ(ReluOf(-1.0f), 0.0f);
  EXPECT_EQ(ReluOf(2.0f), 2.0f);
}

TEST(IsFiniteTest, EndsAtTheLargestFloat) {
  using Float = std::numeric_limits<float>;
  for (const float x : {0.0f, Float::max(), Float::lowest(), Float::denorm_min()}) EXPECT_TRUE(IsFinite(x)) << x;
  for (const float x : {Float::infinity(), -Float::infinity(), Float::quiet_NaN()}) EXPECT_FALSE(IsFinite(x)) << x;
}

}  // namespace
}  // namespace starring::cuda
