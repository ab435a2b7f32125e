// Words that a kernel and the host, another GPU or another process write and read for each other.
//
// A writer stores its data, then a word by StoreReleaseSystem. A reader that gets this value by LoadAcquireSystem also
// sees all data that the writing thread stored before. Data of the block's other threads is covered if two conditions
// hold: a barrier follows their stores, and the writing thread calls __threadfence_system() between barrier and word.
//
// Words are aligned unsigned integers of 1, 4 or 8 bytes, in memory of any GPU or of the host. Device code only.
#ifndef STARRING_KERNELS_CUDA_SYSTEM_SCOPE_H_
#define STARRING_KERNELS_CUDA_SYSTEM_SCOPE_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace starring::cuda {

#ifdef __CUDACC__

__device__ inline uint8_t LoadAcquireSystem(const uint8_t* word) {
  uint32_t value;
  asm volatile("ld.acquire.sys.u8 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return static_cast<uint8_t>(value);
}
__device__ inline uint32_t LoadAcquireSystem(const uint32_t* word) {
  uint32_t value;
  asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
__device__ inline uint64_t LoadAcquireSystem(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

__device__ inline void StoreReleaseSystem(uint8_t* word, uint8_t value) {
  asm volatile("st.release.sys.u8 [%0], %1;" : : "l"(word), "r"(uint32_t{value}) : "memory");
}
__device__ inline void StoreReleaseSystem(uint32_t* word, uint32_t value) {
  asm volatile("st.release.sys.u32 [%0], %1;" : : "l"(word), "r"(value) : "memory");
}
__device__ inline void StoreReleaseSystem(uint64_t* word, uint64_t value) {
  asm volatile("st.release.sys.u64 [%0], %1;" : : "l"(word), "l"(value) : "memory");
}

// Nanoseconds of a clock that all processes on the GPU share.
__device__ inline uint64_t GlobalTimerNs() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

#else  // tests/cuda_emulation

template <typename Word>
Word LoadAcquireSystem(const Word* word) {
  return static_cast<Word>(cuda_emulation::LoadAcquire(word, sizeof(Word)));
}
template <typename Word>
void StoreReleaseSystem(Word* word, std::type_identity_t<Word> value) {
  cuda_emulation::StoreRelease(word, sizeof(Word), value);
}
inline uint64_t GlobalTimerNs() { return cuda_emulation::GlobalTimer(); }

#endif

}  // namespace starring::cuda

#endif  // STARRING_KERNELS_CUDA_SYSTEM_SCOPE_H_
