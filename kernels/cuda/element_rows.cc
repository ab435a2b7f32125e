#include "kernels/cuda/element_rows.h"

#include <bit>

#include "common/base/check.h"

namespace starring {

ElementRows ElementRows::Of(std::span<const ElementRange> ranges) {
  if (ranges.empty()) return {};
  ElementRows rows = ranges.front();
  const int64_t length = rows.in_rows;
  size_t count = 1;
  const int64_t stride = ranges.size() > 1 ? ranges[1].begin - rows.begin : 0;
  while (count < ranges.size() && ranges[count].size() == length &&
         ranges[count].begin == ranges[count - 1].begin + stride) {
    ++count;
  }
  if (count > 1) {
    rows.stride = stride;
    CHECK(std::has_single_bit(static_cast<uint64_t>(length))) << length;
    rows.row_shift = std::countr_zero(static_cast<uint64_t>(length));
    rows.in_rows = static_cast<int64_t>(count) * length;
  }
  CHECK_LE(ranges.size(), count + 1) << "rows of several lengths or distances";
  rows.tail = count < ranges.size() ? ranges.back() : ElementRange{ranges.back().end, ranges.back().end};
  return rows;
}

int64_t ElementRows::end() const { return tail.end; }

}  // namespace starring
