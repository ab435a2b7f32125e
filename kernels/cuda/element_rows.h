// Elements of a vector that lie in rows, as a rank's chunk of each reduction block of a bucket does: one kernel then
// treats all of them.
//
// Thread safety: a value.
#ifndef STARRING_KERNELS_CUDA_ELEMENT_ROWS_H_
#define STARRING_KERNELS_CUDA_ELEMENT_ROWS_H_

#include <cstdint>
#include <span>

#include "common/base/element_range.h"

namespace starring {

// Element number i of them is, in the vector,
//
//   begin + (i >> row_shift) * stride + i % 2^row_shift    for i < in_rows,
//   tail.begin + i - in_rows                               for the others.
struct ElementRows {
  ElementRows() = default;
  // One row: the usual case.
  ElementRows(ElementRange range)  // NOLINT(google-explicit-constructor)
      : begin(range.begin), in_rows(range.size()), tail{range.end, range.end} {}
  // REQUIRES: the ranges ascend, and all but the last have one length, a power of two if they are several, and one
  // distance.
  static ElementRows Of(std::span<const ElementRange> ranges);

  int64_t size() const { return in_rows + tail.size(); }
  // Behind the last element.
  int64_t end() const;

  int64_t begin = 0;
  int64_t in_rows = 0;
  int64_t stride = 0;
  int row_shift = 62;  // of one row
  ElementRange tail;   // a last row, which is shorter
};

}  // namespace starring

#endif  // STARRING_KERNELS_CUDA_ELEMENT_ROWS_H_
