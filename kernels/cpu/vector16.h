// Sixteen lanes as a GCC vector type: one AVX-512 register, or two or four narrower ones where a clone has no more.
// Loads and stores need no alignment. For use inside functions that are inlined into a clone
// (common/arithmetic/instruction_set.h). A target that includes this is compiled with -Wno-psabi.
#ifndef STARRING_KERNELS_CPU_VECTOR16_H_
#define STARRING_KERNELS_CPU_VECTOR16_H_

#include <cstdint>
#include <cstring>

namespace starring {

inline constexpr int64_t kLanes = 16;

using Float16 = float __attribute__((vector_size(64)));

[[gnu::always_inline]] inline Float16 Load(const float* p) {
  Float16 v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

[[gnu::always_inline]] inline void Store(Float16 v, float* p) { std::memcpy(p, &v, sizeof(v)); }

}  // namespace starring

#endif  // STARRING_KERNELS_CPU_VECTOR16_H_
