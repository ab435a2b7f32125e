// Mean and deviation of a data set's values, and the step from pixels or numbers to normalised float32.
#ifndef STARRING_WORKER_DATA_NORMALIZATION_H_
#define STARRING_WORKER_DATA_NORMALIZATION_H_

#include <cstdint>
#include <span>
#include <vector>

#include "common/arithmetic/instruction_set.h"
#include "worker/data/dataset.h"

namespace starring {

// By channel. Those of pixels are in units of pixel / 255.
struct Normalization {
  std::vector<float> mean;
  std::vector<float> deviation;
  FieldType type = FieldType::kPixels;
};

// Measures the whole set. The deviation is the population's: divided by the number of values. A channel whose values
// are all equal gets deviation 1, so that it becomes zero; so does one of numbers whose deviation has no inverse in
// float32. With Normalize::kNone means are 0 and deviations 1.
//
// The moments of numbers are float64: those of 256 samples at a time, joined in pairs (Chan, Golub and LeVeque 1979,
// "Updating formulae and a pairwise algorithm for computing sample variances"). So every worker finds the same bits.
Normalization NormalizationOf(const Dataset& dataset, Normalize normalize = Normalize::kChannels);

// Sums over the pixels of images [begin, end), in one pass: the sum of each channel, the sum of squares of each
// channel, then the number of pixels per channel; 2 * channels + 1 values. They are integers, which a double holds
// exactly up to 2^53 (10^11 pixels), so the sum over ranks does not depend on how the images were divided among them.
// REQUIRES: 0 <= begin <= end <= dataset.count; a set of pixels.
std::vector<double> PixelSums(const Dataset& dataset, int64_t begin, int64_t end);

// As NormalizationOf. REQUIRES: `sums` as PixelSums returns them, added over disjoint ranges with at least one pixel.
Normalization NormalizationFromSums(std::span<const double> sums);

// By channel.
struct NormalizerConstants {
  std::vector<float> offset, scale;
};
NormalizerConstants NormalizerConstantsOf(const Normalization& normalization);

// out = (value - offset) * scale: (pixel - 255 mean) * (1 / (255 deviation)), or (number - mean) * (1 / deviation),
// where each constant is rounded to float once. No compiler can fuse a subtraction and a multiplication, so every
// instruction set and a GPU give the same bits. A 256-entry table per channel gives the same values of pixels but is
// slower: 16 lookups against one vector of arithmetic (bench/loader_bench.cc measures both).
//
// Thread safety: immutable; any thread may call Run.
class Normalizer {
 public:
  explicit Normalizer(const Normalization& normalization, InstructionSet instruction_set = BestInstructionSet());

  // `count` values of the normalization's type, as the data set has them: channels interleaved. `first` is the number
  // of the first of them in its sample. REQUIRES: numbers are aligned as floats.
  void Run(const uint8_t* values, int64_t count, float* out, int64_t first = 0) const;

 private:
  FieldType type_;
  InstructionSet instruction_set_;
  int64_t channels_;
  // The channels' constants repeated over a row of pixels, so that the loop over values needs no channel arithmetic.
  std::vector<float> offset_;
  std::vector<float> scale_;
};

}  // namespace starring

#endif  // STARRING_WORKER_DATA_NORMALIZATION_H_
