// The augmentation of CIFAR-10's usual recipe (He et al. 2015, section 4.2): pad by 4 zero pixels, crop to the
// original size at random, flip left and right with probability 1/2.
#ifndef STARRING_WORKER_DATA_CROP_FLIP_H_
#define STARRING_WORKER_DATA_CROP_FLIP_H_

#include <cstdint>

namespace starring {

// Zero pixels on each side; they are zero before normalisation, as in torchvision's Pad, ToTensor, Normalize.
inline constexpr int64_t kCropPadding = 4;

struct CropFlip {
  enum class Flip { kNo, kYes };
  int64_t top = kCropPadding;   // of the crop in the padded image: 0 to 2 * kCropPadding
  int64_t left = kCropPadding;  // likewise
  Flip flip = Flip::kNo;
};

// Of one sample (its index in the data set) in one epoch, from the words w of Philox (seed, kAugment, epoch, sample):
// top = (9 w[0]) >> 32, left = (9 w[1]) >> 32, flip if w[2] >= 2^31.
CropFlip DrawCropFlip(uint64_t seed, int64_t epoch, int64_t sample);

struct ImageShape {
  int64_t height = 0, width = 0, channels = 0;
};

// `in` and `out` hold shape.height * shape.width * shape.channels bytes each and do not overlap.
void ApplyCropFlip(const CropFlip& crop, const ImageShape& shape, const uint8_t* in, uint8_t* out);

}  // namespace starring

#endif  // STARRING_WORKER_DATA_CROP_FLIP_H_
