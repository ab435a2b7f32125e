// uint8 pixels to normalised float32.
#ifndef STARRING_WORKER_DATA_PIXEL_NORMALIZER_H_
#define STARRING_WORKER_DATA_PIXEL_NORMALIZER_H_

#include <cstdint>
#include <vector>

#include "common/arithmetic/instruction_set.h"
#include "worker/data/normalization.h"

namespace starring {

// One of each channel.
struct PixelConstants {
  std::vector<float> offset, scale;
};
PixelConstants PixelConstantsOf(const Normalization& normalization);

// out = (pixel - offset) * scale = (pixel - 255 mean) * (1 / (255 deviation)), both constants rounded to float once: a
// subtraction and a multiplication, which no compiler can fuse, so that every instruction set (and a GPU) gives the
// same bits. A 256-entry table per channel gives the same values but is slower: 16 lookups against one vector of
// arithmetic (bench/loader_bench.cc has both).
//
// Thread safety: immutable; any thread may call Run.
class PixelNormalizer {
 public:
  explicit PixelNormalizer(const Normalization& normalization, InstructionSet instruction_set = BestInstructionSet());

  // `count` values, channels interleaved, beginning with channel 0.
  void Run(const uint8_t* pixels, int64_t count, float* out) const;

 private:
  InstructionSet instruction_set_;
  // The channels' constants repeated over a row of pixels, so that the loop over values needs no channel arithmetic.
  std::vector<float> offset_;
  std::vector<float> scale_;
};

}  // namespace starring

#endif  // STARRING_WORKER_DATA_PIXEL_NORMALIZER_H_
