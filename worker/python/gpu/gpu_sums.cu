// Nothing of kernels/cuda: these kernels are all that libstarring.so has of CUDA, and its sources are its own.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "worker/python/gpu/gpu_sums.h"

namespace starring {
namespace {

// std::bit_cast is no device function without a flag of nvcc.
__device__ inline uint32_t BitsOf(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}
__device__ inline float FloatOf(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

// The element types, with the operations of element_sum.cc in their order. nvcc contracts none of them (-fmad=false)
// and keeps subnormal numbers, so CPU and GPU give equal bits.

struct Float32 {
  using Element = float;
  __device__ static float Widen(float element) { return element; }
  __device__ static float Narrow(float value) { return value; }
};

struct Bfloat16 {
  using Element = uint16_t;
  __device__ static float Widen(uint16_t element) { return FloatOf(uint32_t{element} << 16); }
  __device__ static uint16_t Narrow(float value) {
    const uint32_t bits = BitsOf(value);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const uint32_t quiet = bits >> 16 | 0x40;
    return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
  }
};

struct Float16 {
  using Element = uint16_t;
  __device__ static float Widen(uint16_t element) {
    const uint32_t half = element;
    const uint32_t magnitude = (half & 0x7fff) << 13;
    const uint32_t scaled = BitsOf(FloatOf(magnitude) * 0x1p112f);
    const uint32_t special = magnitude >= 0x1fu << 23 ? 0xffu << 23 : 0u;
    return FloatOf((half & 0x8000) << 16 | scaled | special);
  }
  __device__ static uint16_t Narrow(float value) {
    constexpr uint32_t kMagic = ((127 - 15) + (23 - 10) + 1) << 23;
    const uint32_t bits = BitsOf(value);
    const uint32_t magnitude = bits & 0x7fffffff;
    const uint32_t large = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
    const uint32_t subnormal = BitsOf(FloatOf(magnitude) + FloatOf(kMagic)) - kMagic;
    const uint32_t normal = (magnitude - (uint32_t{127 - 15} << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    uint32_t half = magnitude < uint32_t{127 - 14} << 23 ? subnormal : normal;
    half = magnitude >= uint32_t{127 + 16} << 23 ? large : half;
    return static_cast<uint16_t>(half | (bits >> 16 & 0x8000));
  }
};

// kWidth neighbours in memory, which one access moves, or two.
template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth) Neighbours {
  T v[kWidth];
};
template <int kWidth, typename T>
__device__ inline Neighbours<T, kWidth> Load(const T* p) {
  return *reinterpret_cast<const Neighbours<T, kWidth>*>(p);
}
template <int kWidth, typename T>
__device__ inline void Store(const Neighbours<T, kWidth>& neighbours, T* p) {
  *reinterpret_cast<Neighbours<T, kWidth>*>(p) = neighbours;
}

template <typename Type>
inline constexpr int kWidthOf = 16 / sizeof(typename Type::Element);

// The largest power of two below `count`, which is at least 2.
__host__ __device__ constexpr int PowerBelow(int count) { return count <= 2 ? 1 : 2 * PowerBelow((count + 1) / 2); }

// As SumOrder::kTree says.
template <int kBegin, int kEnd>
__device__ inline float TreeSum(const float* leaves) {
  if constexpr (kEnd - kBegin == 1) {
    return leaves[kBegin];
  } else {
    constexpr int kMiddle = kBegin + PowerBelow(kEnd - kBegin);
    const float left = TreeSum<kBegin, kMiddle>(leaves);
    return left + TreeSum<kMiddle, kEnd>(leaves);
  }
}

// The sums of elements [e, e + kWidth). No `__restrict__` and no read-only cache: other processes write these arrays
// between two launches.
template <typename Type, int kWidth, int kRanks = 2>
__device__ inline Neighbours<float, kWidth> SumOf(const GpuStarSum& g, int64_t e) {
  using Element = typename Type::Element;
  // The number of ranks is a constant of each branch: loops unroll, and what was loaded stays in registers.
  if constexpr (kRanks < kGpuRanksMax) {
    if (g.rank_count > kRanks) return SumOf<Type, kWidth, kRanks + 1>(g, e);
  }
  Neighbours<Element, kWidth> in[kRanks];
  // All loads come before the first addition: a load from another GPU takes a microsecond.
#pragma unroll
  for (int rank = 0; rank < kRanks; ++rank) in[rank] = Load<kWidth>(static_cast<const Element*>(g.places[rank]) + e);
  Neighbours<float, kWidth> sum;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    float leaves[kRanks];
#pragma unroll
    for (int rank = 0; rank < kRanks; ++rank) leaves[rank] = Type::Widen(in[rank].v[k]);
    sum.v[k] = TreeSum<0, kRanks>(leaves);
  }
  return sum;
}

template <typename Type, int kWidth>
__device__ inline void SumElements(const GpuStarSum& g, int64_t e) {
  using Element = typename Type::Element;
  const Neighbours<float, kWidth> sum = SumOf<Type, kWidth>(g, e);
  Neighbours<Element, kWidth> out;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) out.v[k] = Type::Narrow(sum.v[k] / g.divisor);
    // The owner writes the sum into every rank's place, so no second exchange gathers it.
#pragma unroll 1
  for (int rank = 0; rank < g.rank_count; ++rank) Store(out, static_cast<Element*>(g.places[rank]) + e);
}

template <typename Type>
__device__ inline void StarSum(const GpuStarSum& g) {
  constexpr int kWidth = kWidthOf<Type>;
  const int64_t stride = int64_t{gridDim.x} * kGpuSumThreads;
  const int64_t thread = int64_t{blockIdx.x} * kGpuSumThreads + threadIdx.x;
  const int64_t packs = g.begin % kWidth == 0 ? (g.end - g.begin) / kWidth : 0;
#pragma unroll 1
  for (int64_t i = thread; i < packs; i += stride) SumElements<Type, kWidth>(g, g.begin + kWidth * i);
#pragma unroll 1
  for (int64_t e = g.begin + kWidth * packs + thread; e < g.end; e += stride) SumElements<Type, 1>(g, e);
}

__device__ inline int64_t ElementOf(const GpuRingChunk& chunk, int64_t i) {
  if (i >= chunk.whole_count) return chunk.last_begin + i - chunk.whole_count;
  const int64_t inside = i & ((int64_t{1} << chunk.shift) - 1);
  return (i >> chunk.shift) * chunk.block_elements + chunk.first + inside;
}

template <typename Type, int kWidth>
__device__ inline void AddElements(const GpuRingAdd& g, int64_t e) {
  using Element = typename Type::Element;
  auto* const own = static_cast<Element*>(g.own) + e;
  Neighbours<float, kWidth> sum;
  if (g.left_elements != nullptr) {
    const auto left = Load<kWidth>(static_cast<const Element*>(g.left_elements) + e);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) sum.v[k] = Type::Widen(left.v[k]);
  } else {
    sum = Load<kWidth>(g.left_partial + e);
  }
  Neighbours<Element, kWidth> elements = Load<kWidth>(static_cast<const Element*>(own));
#pragma unroll
  for (int k = 0; k < kWidth; ++k) sum.v[k] += Type::Widen(elements.v[k]);
  if (g.partial != nullptr) return Store(sum, g.partial + e);
#pragma unroll
  for (int k = 0; k < kWidth; ++k) elements.v[k] = Type::Narrow(sum.v[k] / g.divisor);
  Store(elements, own);
}

// Chunks of whole blocks begin at a multiple of kWidth, and those of the last block anywhere.
template <typename Type>
__device__ inline void RingAdd(const GpuRingAdd& g) {
  constexpr int kWidth = kWidthOf<Type>;
  const int64_t stride = int64_t{gridDim.x} * kGpuSumThreads;
  const int64_t thread = int64_t{blockIdx.x} * kGpuSumThreads + threadIdx.x;
#pragma unroll 1
  for (int64_t i = kWidth * thread; i < g.chunk.whole_count; i += kWidth * stride) {
    AddElements<Type, kWidth>(g, ElementOf(g.chunk, i));
  }
#pragma unroll 1
  for (int64_t i = g.chunk.whole_count + thread; i < g.chunk.count; i += stride) {
    AddElements<Type, 1>(g, ElementOf(g.chunk, i));
  }
}

template <typename Element>
__device__ inline void RingCopy(const GpuRingCopy& g) {
  constexpr int kWidth = 16 / sizeof(Element);
  const auto* const left = static_cast<const Element*>(g.left);
  auto* const own = static_cast<Element*>(g.own);
  const int64_t stride = int64_t{gridDim.x} * kGpuSumThreads;
  const int64_t thread = int64_t{blockIdx.x} * kGpuSumThreads + threadIdx.x;
#pragma unroll 1
  for (int64_t i = kWidth * thread; i < g.chunk.whole_count; i += kWidth * stride) {
    const int64_t e = ElementOf(g.chunk, i);
    Store(Load<kWidth>(left + e), own + e);
  }
#pragma unroll 1
  for (int64_t i = g.chunk.whole_count + thread; i < g.chunk.count; i += stride) {
    const int64_t e = ElementOf(g.chunk, i);
    own[e] = left[e];
  }
}

}  // namespace
}  // namespace starring

// A table of pointers in constant memory can be indexed by a register.
#define STARRING_GPU_KERNEL(name, Args, body)                            \
  extern "C" __global__ void __launch_bounds__(starring::kGpuSumThreads) \
      name(const __grid_constant__ starring::Args g) {                   \
    starring::body(g);                                                   \
  }

STARRING_GPU_KERNEL(starring_star_sum_float32, GpuStarSum, StarSum<starring::Float32>)
STARRING_GPU_KERNEL(starring_star_sum_bfloat16, GpuStarSum, StarSum<starring::Bfloat16>)
STARRING_GPU_KERNEL(starring_star_sum_float16, GpuStarSum, StarSum<starring::Float16>)
STARRING_GPU_KERNEL(starring_ring_add_float32, GpuRingAdd, RingAdd<starring::Float32>)
STARRING_GPU_KERNEL(starring_ring_add_bfloat16, GpuRingAdd, RingAdd<starring::Bfloat16>)
STARRING_GPU_KERNEL(starring_ring_add_float16, GpuRingAdd, RingAdd<starring::Float16>)
STARRING_GPU_KERNEL(starring_ring_copy_32, GpuRingCopy, RingCopy<uint32_t>)
STARRING_GPU_KERNEL(starring_ring_copy_16, GpuRingCopy, RingCopy<uint16_t>)
