// A tensor that an emulated library reads or writes: float32 or bfloat16 in memory, floats for the loops. It has its
// own rounding, which the tests so compare with that of kernels/cuda/bfloat16.h.
#ifndef STARRING_TESTS_CUDA_EMULATION_INCLUDE_STORED_H_
#define STARRING_TESTS_CUDA_EMULATION_INCLUDE_STORED_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace starring::cuda_emulation {

class Stored {
 public:
  // `count` elements, which may change later: floats() is then what they were, unless they are float32.
  Stored(const void* memory, int64_t count, bool is_bfloat16) : memory_(memory), is_bfloat16_(is_bfloat16) {
    if (!is_bfloat16) return;
    widened_.resize(static_cast<size_t>(count));
    for (size_t i = 0; i < widened_.size(); ++i) {
      const uint32_t bits = uint32_t{static_cast<const uint16_t*>(memory)[i]} << 16;
      std::memcpy(&widened_[i], &bits, sizeof(bits));
    }
  }

  const float* floats() const { return is_bfloat16_ ? widened_.data() : static_cast<const float*>(memory_); }

  void Write(void* memory, int64_t index, float value) const {
    if (is_bfloat16_) {
      static_cast<uint16_t*>(memory)[index] = Nearest(value);
    } else {
      static_cast<float*>(memory)[index] = value;
    }
  }

 private:
  // The nearest by comparing distances: of the number below in magnitude and the one above it, whose patterns follow
  // each other.
  static uint16_t Nearest(float value) {
    if (std::isnan(value)) return 0x7fff;
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    const uint32_t below = bits & 0xffff0000u, rest = bits & 0xffffu;
    const bool up = rest > 0x8000u || (rest == 0x8000u && (below >> 16) % 2 == 1);
    return static_cast<uint16_t>((below >> 16) + (up ? 1 : 0));
  }

  const void* memory_;
  const bool is_bfloat16_;
  std::vector<float> widened_;
};

}  // namespace starring::cuda_emulation

#endif  // STARRING_TESTS_CUDA_EMULATION_INCLUDE_STORED_H_
