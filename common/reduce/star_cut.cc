#include "common/reduce/star_cut.h"

#include "common/base/check.h"

namespace starring {
namespace {

// Slices begin at cache lines, of elements of any type, if the array does.
constexpr int64_t kLineElements = 32;

}  // namespace

StarCut::StarCut(const Reduction& reduction, int owner_count)
    : count_(reduction.head.count),
      owner_count_(owner_count),
      slice_count_(static_cast<int>(std::clamp<int64_t>(reduction.head.bytes() / kSliceBytesMin, 1, owner_count))),
      first_owner_(static_cast<int>(reduction.number % owner_count)) {
  CHECK_GE(owner_count, 1);
}

ElementRange StarCut::SliceOf(int owner) const {
  CHECK(0 <= owner && owner < owner_count_) << owner;
  const int slice = (owner - first_owner_ + owner_count_) % owner_count_;
  if (slice >= slice_count_) return {};
  const auto begin_of = [&](int s) {
    return s == slice_count_ ? count_ : count_ * s / slice_count_ / kLineElements * kLineElements;
  };
  return {begin_of(slice), begin_of(slice + 1)};
}

}  // namespace starring
