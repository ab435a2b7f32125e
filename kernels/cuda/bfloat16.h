// A stored bfloat16 and its conversions; and the choice of a kernel by the elements that a caller has.
//
// Device code of .cu files, but for WithElement. CUDA's own type is not used: the host compiler, by which
// tests/cuda_emulation runs these sources, has none.
#ifndef STARRING_KERNELS_CUDA_BFLOAT16_H_
#define STARRING_KERNELS_CUDA_BFLOAT16_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "kernels/cuda/pack.h"
#include "kernels/element.h"

namespace starring {

struct Bfloat16 {
  uint16_t bits;
};

namespace cuda {

__device__ inline float FloatOf(float x) { return x; }
// Exact.
__device__ inline float FloatOf(Bfloat16 x) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(uint32_t{x.bits} << 16);
#else
  const uint32_t bits = uint32_t{x.bits} << 16;
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
#endif
}

// `low` in the lower half. Each is rounded to the nearest, ties to even; beyond the largest number lies infinity;
// denormals stay; every NaN becomes 0x7fff.
__device__ inline uint32_t RoundedPair(float low, float high) {
#if defined(__CUDA_ARCH__)
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  const auto rounded = [](float x) -> uint32_t {
    if (x != x) return 0x7fff;
    uint32_t bits = 0;
    std::memcpy(&bits, &x, sizeof(bits));
    // Half of the last place that stays, less one where that place is even: a tie then carries only to an even number.
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  };
  return rounded(low) | rounded(high) << 16;
#endif
}

template <typename T>
__device__ inline T Rounded(float x);
template <>
__device__ inline float Rounded<float>(float x) {
  return x;
}
template <>
__device__ inline Bfloat16 Rounded<Bfloat16>(float x) {
  return {static_cast<uint16_t>(RoundedPair(x, 0))};
}

template <int kWidth>
__device__ inline Pack<float, kWidth> FloatsOf(const Pack<float, kWidth>& pack) {
  return pack;
}
template <int kWidth>
__device__ inline Pack<float, kWidth> FloatsOf(const Pack<Bfloat16, kWidth>& pack) {
  Pack<float, kWidth> floats;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) floats.v[k] = FloatOf(pack.v[k]);
  return floats;
}

// Loads kWidth neighbours as floats, and stores floats as the memory's type, each rounded once.
template <int kWidth, typename T>
__device__ inline Pack<float, kWidth> LoadFloats(const T* p) {
  return FloatsOf(LoadPack<kWidth>(p));
}
template <int kWidth>
__device__ inline void StoreFloats(const Pack<float, kWidth>& pack, float* p) {
  StorePack(pack, p);
}
template <int kWidth>
__device__ inline void StoreFloats(const Pack<float, kWidth>& pack, Bfloat16* p) {
  if constexpr (kWidth == 1) {
    *p = Rounded<Bfloat16>(pack.v[0]);
  } else {
    Pack<uint32_t, kWidth / 2> pairs;
#pragma unroll
    for (int k = 0; k < kWidth / 2; ++k) pairs.v[k] = RoundedPair(pack.v[2 * k], pack.v[2 * k + 1]);
    *reinterpret_cast<Pack<uint32_t, kWidth / 2>*>(p) = pairs;
  }
}

// Calls visit.template operator()<T>() for the type T of all `elements`; those that are null may be of any other.
template <typename Visit, typename... More>
cudaError_t WithElement(const Visit& visit, Element element, const More&... more) {
  const bool agree = ((more.is_null() || more.element() == element) && ...);
  if (!agree) return cudaErrorInvalidValue;
  return element == Element::kFloat32 ? visit.template operator()<float>() : visit.template operator()<Bfloat16>();
}

}  // namespace cuda
}  // namespace starring

#endif  // STARRING_KERNELS_CUDA_BFLOAT16_H_
