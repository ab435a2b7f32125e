// The usual augmentation of CIFAR-10 (He et al. 2015, section 4.2): pad by 4 zero pixels, crop to the original size at
// a random place, flip left and right with probability 1/2.
//
// Thread safety: pure functions.
#ifndef STARRING_WORKER_DATA_CROP_FLIP_H_
#define STARRING_WORKER_DATA_CROP_FLIP_H_

#include <cstdint>

namespace starring {

// Zero pixels on each side. They are zero before normalisation, as in torchvision's Pad, ToTensor, Normalize.
inline constexpr int64_t kCropPadding = 4;

struct CropFlip {
  enum class Flip { kNo, kYes };
  int64_t top = kCropPadding;   // first row of the crop in the padded image: 0 to 2 * kCropPadding
  int64_t left = kCropPadding;  // first column, in the same range
  Flip flip = Flip::kNo;
};

// The crop of one sample (its index in the data set) in one epoch, drawn from the words w of Philox (seed, kAugment,
// epoch, sample): top = (9 w[0]) >> 32, left = (9 w[1]) >> 32, flip if w[2] >= 2^31.
CropFlip DrawCropFlip(uint64_t seed, int64_t epoch, int64_t sample);

struct ImageShape {
  int64_t height = 0, width = 0;
  int64_t channels = 0;  // bytes of a pixel
};

// `in` and `out` have shape.height * shape.width * shape.channels bytes each and do not overlap.
void ApplyCropFlip(const CropFlip& crop, const ImageShape& shape, const uint8_t* in, uint8_t* out);

}  // namespace starring

#endif  // STARRING_WORKER_DATA_CROP_FLIP_H_
