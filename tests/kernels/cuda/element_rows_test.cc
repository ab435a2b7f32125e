#include "kernels/cuda/element_rows.h"

#include <vector>

#include "common/reduce/owner_map.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

// Element number i, by the formula of the header.
int64_t At(const ElementRows& rows, int64_t i) {
  if (i >= rows.in_rows) return rows.tail.begin + i - rows.in_rows;
  return rows.begin + (i >> rows.row_shift) * rows.stride + i % (int64_t{1} << rows.row_shift);
}

TEST(ElementRows, HaveTheElementsOfTheRangesInTheirOrder) {
  // The chunks of buckets of a few blocks, with short and with missing ones in the last block.
  for (const int ranks : {2, 3, 8}) {
    for (const ElementRange bucket : {ElementRange{0, 3}, {0, 1'000'000}, {786'432, 786'432 + 300'001}}) {
      for (int chunk = 0; chunk < ranks; ++chunk) {
        const std::vector<ElementRange> ranges = OwnerMap::SplitChunks(ranks).SliceOf({.elements = bucket}, chunk);
        const ElementRows rows = ElementRows::Of(ranges);
        int64_t i = 0;
        for (const ElementRange& range : ranges) {
          for (int64_t e = range.begin; e < range.end; ++e) ASSERT_EQ(At(rows, i++), e) << ranks << " " << chunk;
        }
        EXPECT_EQ(rows.size(), i);
        EXPECT_EQ(rows.end(), ranges.empty() ? 0 : ranges.back().end);
      }
    }
  }
}

TEST(ElementRowsDeathTest, OtherShapesAreRefused) {
  const std::vector<ElementRange> distances = {{0, 4}, {8, 12}, {20, 24}, {30, 34}};
  EXPECT_DEATH(ElementRows::Of(distances), "rows of several lengths or distances");
  const std::vector<ElementRange> no_power = {{0, 3}, {8, 11}};
  EXPECT_DEATH(ElementRows::Of(no_power), "3");
}

}  // namespace
}  // namespace starring
