// Mean and deviation of a data set's pixels, from sums that add up over ranks exactly.
#ifndef STARRING_WORKER_DATA_NORMALIZATION_H_
#define STARRING_WORKER_DATA_NORMALIZATION_H_

#include <cstdint>
#include <span>
#include <vector>

#include "worker/data/dataset.h"

namespace starring {

// Per channel, in units of pixel / 255.
struct Normalization {
  std::vector<float> mean;
  std::vector<float> deviation;
};

// Of the pixels of images [begin, end): each channel's sum, each channel's sum of squares, then the number of pixels
// per channel: 2 * channels + 1 values. Integers, which double holds exactly up to 2^53 (10^11 pixels), so that the sum
// over ranks does not depend on how the images were cut. One pass.
// REQUIRES: 0 <= begin <= end <= dataset.count.
std::vector<double> PixelSums(const Dataset& dataset, int64_t begin, int64_t end);

// The population's deviation (divided by the number of pixels). Of a channel whose pixels are all equal it is 1, so
// that such a channel becomes zero. REQUIRES: `sums` as PixelSums returns them, added over disjoint ranges; at least
// one pixel.
Normalization NormalizationFromSums(std::span<const double> sums);

}  // namespace starring

#endif  // STARRING_WORKER_DATA_NORMALIZATION_H_
