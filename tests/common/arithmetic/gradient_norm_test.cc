#include "common/arithmetic/gradient_norm.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/common/arithmetic/wild_numbers.h"

namespace starring {
namespace {

constexpr InstructionSet kSets[] = {InstructionSet::kBaseline, InstructionSet::kAvx2, InstructionSet::kAvx512};

// Squares of small integers: the sum is exact in any order, so every element must be in it once.
TEST(SumOfSquaresTest, CountsEveryElementOnce) {
  for (const int64_t count : {0, 1, 15, 16, 17, 33, 4095, 4096, 4097, 4112, 20'001}) {
    std::vector<float> values(count);
    double expected = 0;
    for (int64_t i = 0; i < count; ++i) {
      values[i] = static_cast<float>(i % 17 - 8);
      expected += static_cast<double>((i % 17 - 8) * (i % 17 - 8));
    }
    EXPECT_EQ(SumOfSquares(values), expected) << count;
  }
}

// The order of additions, without spans, clones or vectors.
double Plainly(const std::vector<float>& values) {
  double total = 0;
  for (size_t begin = 0; begin < values.size(); begin += 4096) {
    std::array<double, 16> lanes = {};
    for (size_t i = begin; i < std::min(begin + 4096, values.size()); ++i) {
      lanes[i % 16] += double{values[i]} * double{values[i]};
    }
    for (const size_t half : {8, 4, 2, 1}) {
      for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    }
    total += lanes[0];
  }
  return total;
}

TEST(SumOfSquaresTest, EveryInstructionSetGivesTheBitsOfTheOrder) {
  for (const int64_t count : {1, 100, 4097, 50'001}) {
    const std::vector<float> values = WildNumbers(count, 3);
    for (const InstructionSet set : kSets) {
      if (set > BestInstructionSet()) continue;
      EXPECT_EQ(SumOfSquares(values, set), Plainly(values)) << count;
    }
  }
}

TEST(SumOfSquaresTest, TheLargestFloatsDoNotOverflow) {
  const std::vector<float> values(100, std::numeric_limits<float>::max());
  EXPECT_TRUE(std::isfinite(SumOfSquares(values)));
}

TEST(ClipFactorTest, ScalesWhatIsLongerAlone) {
  const std::vector<float> gradient = {3, 0, -4};
  EXPECT_EQ(ClipFactor(1, gradient), static_cast<float>(1 / (5 + 1e-6)));
  EXPECT_EQ(ClipFactor(5, gradient), static_cast<float>(5 / (5 + 1e-6)));
  EXPECT_EQ(ClipFactor(5.1, gradient), 1);
  EXPECT_EQ(ClipFactor(1, std::vector<float>(100)), 1);
}

TEST(ClipFactorTest, ANormThatIsNotANumberStaysOne) {
  EXPECT_TRUE(std::isnan(ClipFactor(1, std::vector<float>{1, std::numeric_limits<float>::quiet_NaN()})));
  EXPECT_EQ(ClipFactor(1, std::vector<float>{1, std::numeric_limits<float>::infinity()}), 0);
}

}  // namespace
}  // namespace starring
