#include "worker/data/normalization.h"

#include <algorithm>
#include <cmath>

#include "common/arithmetic/instruction_set.h"
#include "common/base/check.h"

namespace starring {
namespace {

// Values in a row of whole pixels, which is what the loops below run over: long enough for vectors, short enough for
// the L1 cache. A pixel of many channels is a row by itself.
int64_t PixelsOfRow(int64_t channels, int64_t values) { return std::max<int64_t>(1, values / channels); }

// There is one accumulator for each byte of a row, so that the inner loop has neither a dependence from one iteration
// to the next nor channel arithmetic.
constexpr int64_t kSumRowValues = 192;

// A 32-bit accumulator holds the sum of this many squares of 255.
constexpr int64_t kRowsMax = (int64_t{1} << 32) / (255 * 255);

// REQUIRES: row_count <= kRowsMax; sums and squares are zero.
struct AddRowsArgs {
  const uint8_t* rows;
  int64_t row_count;
  int64_t row_bytes;
  uint32_t* sums;     // (row_bytes)
  uint32_t* squares;  // (row_bytes)
};

[[gnu::always_inline]] inline void AddRowsLoop(const AddRowsArgs& args) {
  const auto [rows, row_count, row_bytes, sums, squares] = args;
  for (int64_t r = 0; r < row_count; ++r) {
    const uint8_t* row = rows + r * row_bytes;
// The accumulators do not overlap the pixels, which the compiler cannot know: ivdep says so.
#pragma GCC ivdep
    for (int64_t i = 0; i < row_bytes; ++i) {
      const uint32_t x = row[i];
      sums[i] += x;
      squares[i] += x * x;
    }
  }
}
STARRING_DEFINE_CLONES(kAddRows, AddRowsLoop, AddRowsArgs);

// Long enough to make the outer loop cheap; the constants take 6 KiB.
constexpr int64_t kNormalizeRowValues = 768;

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

std::vector<double> PixelSums(const Dataset& dataset, int64_t begin, int64_t end) {
  CHECK_GE(begin, 0);
  CHECK_LE(begin, end);
  CHECK_LE(end, dataset.count);
  const int64_t channels = dataset.channels;
  const int64_t row_bytes = PixelsOfRow(channels, kSumRowValues) * channels;
  const uint8_t* bytes = dataset.images.data() + begin * dataset.image_bytes();
  int64_t left = (end - begin) * dataset.image_bytes();
  std::vector<uint64_t> totals(static_cast<size_t>(2 * channels));
  while (left > 0) {
    // The last row may be shorter.
    const int64_t width = std::min(row_bytes, left);
    const int64_t rows = std::min(kRowsMax, left / width);
    std::vector<uint32_t> sums(static_cast<size_t>(width));
    std::vector<uint32_t> squares(static_cast<size_t>(width));
    // The sums are integers, which are the same with every instruction set.
    kAddRows[static_cast<int>(BestInstructionSet())](
        {.rows = bytes, .row_count = rows, .row_bytes = width, .sums = sums.data(), .squares = squares.data()});
    for (int64_t i = 0; i < width; ++i) {
      // A row begins with channel 0, because rows and images have whole pixels.
      totals[i % channels] += sums[i];
      totals[channels + i % channels] += squares[i];
    }
    bytes += rows * width;
    left -= rows * width;
  }
  std::vector<double> result(totals.begin(), totals.end());
  result.push_back(static_cast<double>((end - begin) * dataset.height * dataset.width));
  return result;
}

Normalization NormalizationFromSums(std::span<const double> sums) {
  CHECK_EQ(sums.size() % 2, 1);
  const size_t channels = sums.size() / 2;
  const double count = sums[2 * channels];
  CHECK_GE(count, 1);
  Normalization normalization;
  for (size_t c = 0; c < channels; ++c) {
    const double mean = sums[c] / count;
    // The variance is a difference of two sums, exact up to 2^53 each. The rounding of `mean` can make it negative.
    const double variance = std::max(0.0, (sums[channels + c] - sums[c] * mean) / count);
    // Rounding may leave a little of a variance that is zero. The smallest that is not, with one pixel of n differing
    // by 1, is (n - 1) / n^2, which is 0.5 / n or more.
    const bool constant = variance < 0.5 / count;
    normalization.mean.push_back(static_cast<float>(mean / 255));
    normalization.deviation.push_back(constant ? 1.0f : static_cast<float>(std::sqrt(variance) / 255));
  }
  return normalization;
}

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
  // The constants are repeated for a row of pixels, so that value i of a row needs constant i and no channel
  // arithmetic.
  const int64_t pixels = PixelsOfRow(std::ssize(constants.offset), kNormalizeRowValues);
  for (int64_t pixel = 0; pixel < pixels; ++pixel) {
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
