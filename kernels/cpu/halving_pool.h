// Max pooling by 2 x 2 windows with stride 2 and no padding, in AVX-512 or AVX2. A vector of AVX-512 has 16 channels,
// or, where there are at most 8, as many neighbouring pixels as fit; one of AVX2 has 8 channels. Two bits for every
// output say which of the four inputs won, so that backward is a few masks and four stores per vector.
#ifndef STARRING_KERNELS_CPU_HALVING_POOL_H_
#define STARRING_KERNELS_CPU_HALVING_POOL_H_

#include <cstdint>

namespace starring {

struct HalvingPool {
  int64_t in_height = 0, in_width = 0, channels = 0;
  int64_t lanes = 16;  // of a vector: 16 with AVX-512, 8 with AVX2
  // For one vector of outputs: in the lower 16 bits the lower bit of each lane's winner (0 to 3, in the order of the
  // window), in the upper 16 bits the upper bit.
  using Winners = uint32_t;
  int64_t out_height() const { return in_height / 2; }
  int64_t out_width() const { return in_width / 2; }
  int64_t pixels_per_vector() const { return lanes == 16 && channels <= 8 ? 16 / channels : 1; }
  int64_t vectors_per_row() const {
    const int64_t pixels = pixels_per_vector();
    return pixels > 1 ? (out_width() + pixels - 1) / pixels : out_width() * ((channels + lanes - 1) / lanes);
  }
  int64_t winners_per_image() const { return out_height() * vectors_per_row(); }
};

// Each call treats one image. `winners` has winners_per_image() elements. REQUIRES: a CPU with vectors of `lanes`.
void HalvingForward(const HalvingPool& pool, const float* x, float* y, HalvingPool::Winners* winners);
void HalvingBackward(const HalvingPool& pool, const float* dy, const HalvingPool::Winners* winners, float* dx);

}  // namespace starring

#endif  // STARRING_KERNELS_CPU_HALVING_POOL_H_
