#include "worker/data/pixel_normalizer.h"

#include <algorithm>

#include "common/check.h"

namespace starring {
namespace {

// Long enough to make the outer loop cheap; the constants of three channels still take only 6 KiB of the L1 cache.
constexpr int64_t kRowPixels = 256;

struct NormalizeArgs {
  const uint8_t* pixels;
  int64_t count;
  const float* offset;  // (row_values)
  const float* scale;   // (row_values)
  int64_t row_values;
  float* out;
};

[[gnu::always_inline]] inline void NormalizeLoop(const NormalizeArgs& args) {
  const auto [pixels, count, offset, scale, row_values, out] = args;
  for (int64_t row = 0; row < count; row += row_values) {
    const int64_t values = std::min(row_values, count - row);
#pragma GCC ivdep
    for (int64_t i = 0; i < values; ++i) {
      out[row + i] = (static_cast<float>(pixels[row + i]) - offset[i]) * scale[i];
    }
  }
}
STARRING_DEFINE_CLONES(kNormalize, NormalizeLoop, NormalizeArgs);

}  // namespace

PixelConstants PixelConstantsOf(const Normalization& normalization) {
  PixelConstants constants;
  for (size_t c = 0; c < normalization.mean.size(); ++c) {
    constants.offset.push_back(static_cast<float>(255.0 * normalization.mean[c]));
    constants.scale.push_back(static_cast<float>(1.0 / (255.0 * normalization.deviation[c])));
  }
  return constants;
}

PixelNormalizer::PixelNormalizer(const Normalization& normalization, InstructionSet instruction_set)
    : instruction_set_(instruction_set) {
  CHECK_EQ(normalization.mean.size(), normalization.deviation.size());
  CHECK(!normalization.mean.empty());
  const PixelConstants constants = PixelConstantsOf(normalization);
  for (int64_t pixel = 0; pixel < kRowPixels; ++pixel) {
    offset_.insert(offset_.end(), constants.offset.begin(), constants.offset.end());
    scale_.insert(scale_.end(), constants.scale.begin(), constants.scale.end());
  }
}

void PixelNormalizer::Run(const uint8_t* pixels, int64_t count, float* out) const {
  kNormalize[static_cast<int>(instruction_set_)]({.pixels = pixels,
                                                  .count = count,
                                                  .offset = offset_.data(),
                                                  .scale = scale_.data(),
                                                  .row_values = static_cast<int64_t>(offset_.size()),
                                                  .out = out});
}

}  // namespace starring
