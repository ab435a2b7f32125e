// Sixteen lanes as a GCC vector type: one AVX-512 register, or two or four narrower ones where a clone has no more.
// Loads and stores need no alignment. For use inside functions that are inlined into a clone
// (common/instruction_set.h). A target that includes this is compiled with -Wno-psabi.
#ifndef STARRING_KERNELS_CPU_VECTOR16_H_
#define STARRING_KERNELS_CPU_VECTOR16_H_

#include <cstdint>
#include <cstring>

namespace starring {

inline constexpr int64_t kLanes = 16;

using Float16 = float __attribute__((vector_size(64)));
using Int16 = int32_t __attribute__((vector_size(64)));
using Byte16 = uint8_t __attribute__((vector_size(16)));

[[gnu::always_inline]] inline Float16 Load(const float* p) {
  Float16 v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

[[gnu::always_inline]] inline void Store(Float16 v, float* p) { std::memcpy(p, &v, sizeof(v)); }

[[gnu::always_inline]] inline Int16 LoadBytes(const uint8_t* p) {
  Byte16 bytes;
  std::memcpy(&bytes, p, sizeof(bytes));
  return __builtin_convertvector(bytes, Int16);
}

// The low byte of every lane.
[[gnu::always_inline]] inline void StoreBytes(Int16 v, uint8_t* p) {
  const Byte16 bytes = __builtin_convertvector(v, Byte16);
  std::memcpy(p, &bytes, sizeof(bytes));
}

}  // namespace starring

#endif  // STARRING_KERNELS_CPU_VECTOR16_H_
