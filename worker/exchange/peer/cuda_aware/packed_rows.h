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
  // have one length.
  [[nodiscard]] bool Add(std::span<const float> from, std::span<float> to) {
    const auto length = std::ssize(from);
    if (count_ == 0) {
      *this = {from.data(), to.data(), length};
      return true;
    }
    if (length != length_) return false;
    if (count_ > 1) {
      if (from.data() != from_ + count_ * from_step_ || to.data() != to_ + count_ * to_step_) return false;
      ++count_;
      return true;
    }
    // The second row decides the distances.
    const int64_t from_step = from.data() - from_, to_step = to.data() - to_;
    if (from_step != length && to_step != length) return false;
    // Rows of one array are not further apart than a block is long.
    const int64_t step_max = length * kWorldSizeMax;
    if (from_step < length || to_step < length || from_step > step_max || to_step > step_max) return false;
    from_step_ = from_step;
    to_step_ = to_step;
    count_ = 2;
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

  const float* from_ = nullptr;
  float* to_ = nullptr;
  int64_t length_ = 0;
  int64_t count_ = 0;
  int64_t from_step_ = 0;
  int64_t to_step_ = 0;
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_CUDA_AWARE_PACKED_ROWS_H_
