#include "worker/data/normalization.h"

#include <algorithm>
#include <cmath>

#include "common/arithmetic/instruction_set.h"
#include "common/check.h"

namespace starring {
namespace {

// Accumulators stand side by side, one per byte of a row of kRowPixels pixels: the inner loop then has no dependence
// from one iteration to the next and no channel arithmetic.
constexpr int64_t kRowPixels = 64;

// A 32-bit accumulator takes this many squares of 255.
constexpr int64_t kRowsMax = (int64_t{1} << 32) / (255 * 255);

// REQUIRES: row_count <= kRowsMax; sums and squares zero before.
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
#pragma GCC ivdep
    for (int64_t i = 0; i < row_bytes; ++i) {
      const uint32_t x = row[i];
      sums[i] += x;
      squares[i] += x * x;
    }
  }
}
STARRING_DEFINE_CLONES(kAddRows, AddRowsLoop, AddRowsArgs);

}  // namespace

std::vector<double> PixelSums(const Dataset& dataset, int64_t begin, int64_t end) {
  CHECK_GE(begin, 0);
  CHECK_LE(begin, end);
  CHECK_LE(end, dataset.count);
  const int64_t channels = dataset.channels;
  const int64_t row_bytes = kRowPixels * channels;
  const uint8_t* bytes = dataset.images.data() + begin * dataset.image_bytes();
  int64_t left = (end - begin) * dataset.image_bytes();
  std::vector<uint64_t> totals(static_cast<size_t>(2 * channels));
  while (left > 0) {
    // At the end a row may be short.
    const int64_t width = std::min(row_bytes, left);
    const int64_t rows = std::min(kRowsMax, left / width);
    std::vector<uint32_t> sums(static_cast<size_t>(width));
    std::vector<uint32_t> squares(static_cast<size_t>(width));
    kAddRows[static_cast<int>(BestInstructionSet())](
        {.rows = bytes, .row_count = rows, .row_bytes = width, .sums = sums.data(), .squares = squares.data()});
    for (int64_t i = 0; i < width; ++i) {
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
    const double variance = std::max(0.0, (sums[channels + c] - sums[c] * mean) / count);
    // Rounding leaves a little of a variance that is zero; a single pixel that differs by 1 has (n - 1) / n^2.
    const bool constant = variance < 0.5 / count;
    normalization.mean.push_back(static_cast<float>(mean / 255));
    normalization.deviation.push_back(constant ? 1.0f : static_cast<float>(std::sqrt(variance) / 255));
  }
  return normalization;
}

}  // namespace starring
