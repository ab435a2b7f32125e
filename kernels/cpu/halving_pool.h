// Max pooling by 2 x 2 windows with stride 2 and no padding, in AVX-512: 16 channels a vector, and of every output two
// bits that say which of the four inputs won. Backward is then two masks and four masked stores per vector.
#ifndef STARRING_KERNELS_CPU_HALVING_POOL_H_
#define STARRING_KERNELS_CPU_HALVING_POOL_H_

#include <cstdint>

namespace starring {

struct HalvingPool {
  int64_t in_height = 0, in_width = 0, channels = 0;
  // Bits 0 and 1 of the winner's number of 16 channels, for every output pixel and vector of channels.
  struct Winners {
    uint16_t low, high;
  };
  int64_t vectors() const { return (channels + 15) / 16; }
  int64_t out_height() const { return in_height / 2; }
  int64_t out_width() const { return in_width / 2; }
  int64_t winners_per_image() const { return out_height() * out_width() * vectors(); }
};

// One image each. REQUIRES: a CPU with AVX-512.
void HalvingForward(const HalvingPool& pool, const float* x, float* y, HalvingPool::Winners* winners);
void HalvingBackward(const HalvingPool& pool, const float* dy, const HalvingPool::Winners* winners, float* dx);

}  // namespace starring

#endif  // STARRING_KERNELS_CPU_HALVING_POOL_H_
