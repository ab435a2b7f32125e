// Copies that follow each other, as far as they are the rows of one array: of one length, without gaps on one side, and
// at equal distances on the other one. The chunks of a bucket that one rank owns are such rows.
//
// Thread safety: a value.
#ifndef STARRING_WORKER_EXCHANGE_PEER_CUDA_AWARE_PACKED_ROWS_H_
#define STARRING_WORKER_EXCHANGE_PEER_CUDA_AWARE_PACKED_ROWS_H_

#include <cstdint>
#include <span>

#include "common/base/limits.h"

namespace starring {

class PackedRows {
 public:
  // Adds a copy of `from`. Returns false, and does nothing, if it is not the next row. The first copy always is. Both
  // have one length. No row reads where another one writes, since rows are copied in any order.
  [[nodiscard]] bool Add(std::span<const float> from, std::span<float> to) {
    const auto length = std::ssize(from);
    if (count_ == 0) {
      *this = {from.data(), to.data(), length};
      return true;
    }
    // The arrays need not be of one allocation, so addresses are compared, and not pointers.
    const int64_t from_step = Distance(from_, from.data()), to_step = Distance(to_, to.data());
    if (length != length_ || (count_ == 1 ? !MayHave(from_step, to_step)
                                          : from_step != count_ * from_step_ || to_step != count_ * to_step_)) {
      return false;
    }
    // Refuses spans of reads and writes, from the first row to this one, that overlap.
    const int64_t apart = Distance(from_, to_);
    if (-(to_step + length) < apart && apart < from_step + length) return false;
    if (count_ == 1) {
      from_step_ = from_step;
      to_step_ = to_step;
    }
    ++count_;
    return true;
  }

  int64_t count() const { return count_; }
  int64_t length() const { return length_; }
  // The distance of rows on the side that may have gaps.
  int64_t step() const { return packs() ? from_step_ : to_step_; }
  // Whether the copies have no gaps where they are written. Otherwise they have none where they are read.
  bool packs() const { return to_step_ == length_; }
  const float* from() const { return from_; }
  float* to() const { return to_; }

  PackedRows() = default;

 private:
  PackedRows(const float* from, float* to, int64_t length) : from_(from), to_(to), length_(length), count_(1) {}

  static int64_t Distance(const float* from, const float* to) {
    const auto bytes = static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from));
    return bytes / static_cast<int64_t>(sizeof(float));
  }
  // Whether rows may have these distances, which the second one decides.
  bool MayHave(int64_t from_step, int64_t to_step) const {
    if (from_step != length_ && to_step != length_) return false;
    // Rows of one array are not further apart than a block is long.
    const int64_t step_max = length_ * kWorldSizeMax;
    return length_ <= from_step && from_step <= step_max && length_ <= to_step && to_step <= step_max;
  }

  const float* from_ = nullptr;
  float* to_ = nullptr;
  int64_t length_ = 0;
  int64_t count_ = 0;
  int64_t from_step_ = 0;
  int64_t to_step_ = 0;
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_CUDA_AWARE_PACKED_ROWS_H_
