// A fixed-length float array on a 64-byte boundary (a cache line, the widest vector), zeroed. Move-only.
#ifndef STARRING_COMMON_ALIGNED_FLOATS_H_
#define STARRING_COMMON_ALIGNED_FLOATS_H_

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>

#include "common/aligned_allocation.h"
#include "common/check.h"

namespace starring {

class AlignedFloats {
 public:
  AlignedFloats() = default;
  // REQUIRES: size >= 0.
  explicit AlignedFloats(int64_t size) : size_(size) {
    CHECK_GE(size, 0);
    values_.reset(static_cast<float*>(AllocateAligned(size * sizeof(float))));
    CHECK(values_ != nullptr) << "out of memory at " << size * sizeof(float) << " bytes";
    std::fill_n(values_.get(), size, 0.0f);
  }

  int64_t size() const { return size_; }
  float* data() { return values_.get(); }
  const float* data() const { return values_.get(); }
  std::span<float> span() { return {values_.get(), static_cast<size_t>(size_)}; }
  std::span<const float> span() const { return {values_.get(), static_cast<size_t>(size_)}; }

 private:
  struct Free {
    void operator()(float* values) const { std::free(values); }
  };
  std::unique_ptr<float, Free> values_;
  int64_t size_ = 0;
};

}  // namespace starring

#endif  // STARRING_COMMON_ALIGNED_FLOATS_H_
