// The parameters of one slice after some step. Immutable while anybody but its shard holds it; the shard takes the
// memory back for a later step when the last holder lets go. A worker's reply is such a holder: it can never change
// under a slow worker. The one exception is ParameterShard::UpdateInPlace.
#ifndef STARRING_COMMON_SEALED_SLICE_H_
#define STARRING_COMMON_SEALED_SLICE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "common/aligned_floats.h"

namespace starring {

class SealedSlice {
 public:
  explicit SealedSlice(int64_t element_count) : own_(element_count), values_(own_.span()) {}
  // Lies in `memory`, which `keeper` keeps alive.
  SealedSlice(std::span<float> memory, std::shared_ptr<const void> keeper)
      : keeper_(std::move(keeper)), values_(memory) {}
  SealedSlice(const SealedSlice&) = delete;
  SealedSlice& operator=(const SealedSlice&) = delete;

  std::span<const float> parameters() const { return values_; }
  // The step whose update it contains; first_step - 1 (so -1 in a fresh run) for the initial parameters.
  int64_t step() const { return step_; }

 private:
  friend class ParameterShard;

  AlignedFloats own_;
  std::shared_ptr<const void> keeper_;  // shared: other slices lie in the same memory
  std::span<float> values_;
  int64_t step_ = -1;
};

}  // namespace starring

#endif  // STARRING_COMMON_SEALED_SLICE_H_
