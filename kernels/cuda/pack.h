// Two tools that most kernels use: a pack of neighbours that one access moves, and division by a number that the host
// knows.
//
// Device code of .cu files; Divisor is made on the host.
#ifndef STARRING_KERNELS_CUDA_PACK_H_
#define STARRING_KERNELS_CUDA_PACK_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace starring::cuda {

inline constexpr int kAccessBytes = 16;  // the most that one access moves
// The elements of such an access: 4 floats.
template <typename T>
inline constexpr int kPackOf = kAccessBytes / static_cast<int>(sizeof(T));

constexpr int PackAlignment(int bytes) { return bytes < kAccessBytes ? bytes : kAccessBytes; }

// kWidth neighbours in memory, which several accesses move if they are more than 16 bytes. REQUIRES: a pointer to one
// is aligned to them, or to 16 bytes.
template <typename T, int kWidth>
struct alignas(PackAlignment(static_cast<int>(sizeof(T)) * kWidth)) Pack {
  T v[kWidth];

  __device__ Pack& operator+=(const Pack& other) {
#pragma unroll
    for (int k = 0; k < kWidth; ++k) v[k] += other.v[k];
    return *this;
  }
};

template <int kWidth, typename T>
__device__ inline Pack<T, kWidth> LoadPack(const T* p) {
  return *reinterpret_cast<const Pack<T, kWidth>*>(p);
}
// 0 where there is nothing to load.
template <int kWidth, typename T>
__device__ inline Pack<T, kWidth> LoadPackIf(bool exists, const T* p) {
  return exists ? LoadPack<kWidth>(p) : Pack<T, kWidth>{};
}
template <int kWidth, typename T>
__device__ inline void StorePack(const Pack<T, kWidth>& pack, T* p) {
  *reinterpret_cast<Pack<T, kWidth>*>(p) = pack;
}

inline constexpr int kPackFloats = kPackOf<float>;

enum class Alignment { kPacks, kElements };  // kPacks: 16-byte accesses are legal

template <typename... Pointers>
bool AlignedForPacks(const Pointers*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % kAccessBytes == 0) && ...);
}

// As above, in tensors whose last dimension is `channels`: a pack never crosses from the last channel to the first of
// the next pixel.
template <int kWidth = kPackFloats, typename... Pointers>
Alignment AlignmentOfChannels(int64_t channels, const Pointers*... pointers) {
  return channels % kWidth == 0 && AlignedForPacks(pointers...) ? Alignment::kPacks : Alignment::kElements;
}

__device__ inline bool IsFinite(float x) {
  constexpr float kLargestFinite = 3.40282347e+38f;
  return fabsf(x) <= kLargestFinite;  // no comparison with NaN is true
}

// A NaN stays a NaN, as on the CPU: it must reach the trainer's check.
__device__ inline float ReluOf(float x) { return x < 0.0f ? 0.0f : x; }

// The gradient of the input of a ReLU whose output was y.
template <int kWidth>
__device__ inline Pack<float, kWidth> ReluGradientOf(const Pack<float, kWidth>& y, Pack<float, kWidth> dy) {
#pragma unroll
  for (int k = 0; k < kWidth; ++k) dy.v[k] = y.v[k] > 0.0f ? dy.v[k] : 0.0f;
  return dy;
}

// n / divisor by a multiplication: exact for 0 <= n < 2^31 and 1 <= divisor < 2^31. Granlund and Montgomery, "Division
// by Invariant Integers using Multiplication", PLDI 1994, figure 4.1, with 31 instead of 32 bits of n. A division by a
// register costs about 20 instructions, and a gather needs several for each element.
class Divisor {
 public:
  Divisor() = default;
  explicit Divisor(int64_t divisor) : divisor_(static_cast<uint32_t>(divisor)) {
    uint32_t log2 = 0;  // rounded up
    while ((int64_t{1} << log2) < divisor) ++log2;
    if (log2 == 0) return;  // by one
    const uint64_t power = uint64_t{1} << (31 + log2);
    multiplier_ = static_cast<uint32_t>((power + divisor_ - 1) / divisor_);
    shift_ = log2 - 1;
  }

  __device__ uint32_t Quotient(uint32_t n) const { return multiplier_ == 0 ? n : __umulhi(n, multiplier_) >> shift_; }

  // {n / divisor, n % divisor}.
  struct Parts {
    uint32_t quotient, remainder;
  };
  __device__ Parts Split(uint32_t n) const {
    const uint32_t quotient = Quotient(n);
    return {quotient, n - quotient * divisor_};
  }

 private:
  uint32_t divisor_ = 1, multiplier_ = 0, shift_ = 0;
};

}  // namespace starring::cuda

#endif  // STARRING_KERNELS_CUDA_PACK_H_
