#include "common/arithmetic/array_passes.h"

#include <limits>
#include <numeric>
#include <vector>

#include "common/base/memory.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

// Every place in a cache line, and lengths below, at and above whole lines: copies all and touches nothing else.
TEST(StreamCopyTest, EveryAlignmentAndLength) {
  std::vector<float> from(200);
  std::iota(from.begin(), from.end(), 1.0f);
  for (size_t source = 0; source < 4; ++source) {
    for (size_t begin = 0; begin < 16; ++begin) {
      for (size_t count = 0; count <= 100; ++count) {
        AlignedFloats to(128);
        StreamCopy(std::span(from).subspan(source, count), to.span().subspan(begin, count));
        for (size_t i = 0; i < to.span().size(); ++i) {
          const bool inside = i >= begin && i < begin + count;
          ASSERT_EQ(to.span()[i], inside ? from[source + i - begin] : 0.0f) << begin << " " << count << " " << i;
        }
      }
    }
  }
}

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
