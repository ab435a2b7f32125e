#include "common/arithmetic/non_finite.h"

#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace starring {
namespace {

TEST(FindNonFiniteTest, FindsTheFirstAtEveryPlace) {
  for (size_t length : {1, 7, 16, 33, 100}) {
    std::vector<float> values(length, std::numeric_limits<float>::max());
    EXPECT_EQ(FindNonFinite(values), std::nullopt);
    for (size_t i = 0; i < length; ++i) {
      for (float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                        std::numeric_limits<float>::quiet_NaN()}) {
        std::vector<float> with_bad = values;
        with_bad[i] = with_bad.back() = bad;
        EXPECT_EQ(FindNonFinite(with_bad), static_cast<int64_t>(i));
      }
    }
  }
  EXPECT_EQ(FindNonFinite({}), std::nullopt);
}

}  // namespace
}  // namespace starring
