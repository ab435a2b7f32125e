// Philox4x32-10 of common/arithmetic/philox.h on the GPU: the same words for the same key and counter.
//
// Device code of .cu files.
#ifndef STARRING_KERNELS_CUDA_DEVICE_PHILOX_H_
#define STARRING_KERNELS_CUDA_DEVICE_PHILOX_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace starring::cuda {

// RandomPurpose's numbers; std::array, which common/arithmetic/philox.h uses, is no device code.
inline constexpr uint32_t kAugmentPurpose = 3, kDropoutPurpose = 4;

struct PhiloxWords {
  uint32_t v[4];
};

__device__ inline PhiloxWords Philox(PhiloxWords counter, uint64_t seed) {
  auto key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t low0 = 0xD2511F53u * counter.v[0], high0 = __umulhi(0xD2511F53u, counter.v[0]);
    const uint32_t low1 = 0xCD9E8D57u * counter.v[2], high1 = __umulhi(0xCD9E8D57u, counter.v[2]);
    counter = {{high1 ^ counter.v[1] ^ key0, low1, high0 ^ counter.v[3] ^ key1, low0}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

}  // namespace starring::cuda

#endif  // STARRING_KERNELS_CUDA_DEVICE_PHILOX_H_
