#include "worker/data/normalization.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "common/arithmetic/instruction_set.h"
#include "common/base/check.h"

namespace starring {
namespace {

// Values in a row of whole pixels, which is what the loops below run over: long enough for vectors, short enough for
// the L1 cache. A pixel of many channels is a row by itself.
int64_t PixelsOfRow(int64_t channels, int64_t values) { return std::max<int64_t>(1, values / channels); }

// There is one accumulator for each value of a row, so that the inner loop has neither a dependence from one iteration
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

// Values of a block whose constants stay in registers: whole vectors of every instruction set, and whole pixels of 1,
// 2, 3, 4 and more channels. Numbers that are normalised by blocks take 0.8 of the time on an AMD EPYC. Pixels do not:
// the conversion of bytes needs the registers.
constexpr int64_t kBlockValues = 48;

// Bytes that are summed at a time: the block of a mapped set stays in the second-level cache.
constexpr int64_t kSumBlockBytes = 256 << 10;

// Numbers are bytes in a data set, at addresses that a float may have.
using StoredFloat = float __attribute__((may_alias));

struct RowConstants {
  const float* offset;  // (values)
  const float* scale;   // (values)
  int64_t values;
  int64_t channels;
};
struct PixelArgs {
  const uint8_t* values;
  int64_t count;
  int64_t first;  // number of the first value in its row
  RowConstants row;
  float* out;
};
struct NumberArgs {
  const StoredFloat* values;
  int64_t count;
  int64_t first;
  RowConstants row;
  float* out;
};

[[gnu::always_inline]] inline float ValueAt(const uint8_t* values, int64_t i) { return static_cast<float>(values[i]); }
[[gnu::always_inline]] inline float ValueAt(const StoredFloat* values, int64_t i) { return values[i]; }

// Normalises whole blocks, and returns how many values that are.
// REQUIRES: pixels divide a block.
[[gnu::always_inline]] inline int64_t NormalizeBlocks(const NumberArgs& args) {
  float offset[kBlockValues], scale[kBlockValues];
  for (int64_t i = 0; i < kBlockValues; ++i) {
    offset[i] = args.row.offset[args.first % args.row.channels + i];
    scale[i] = args.row.scale[args.first % args.row.channels + i];
  }
  float* const out = args.out;
  int64_t block = 0;
  for (; block + kBlockValues <= args.count; block += kBlockValues) {
#pragma GCC ivdep
    for (int64_t i = 0; i < kBlockValues; ++i) {
      out[block + i] = (args.values[block + i] - offset[i]) * scale[i];
    }
  }
  return block;
}

template <class Args>
[[gnu::always_inline]] inline void NormalizeLoop(const Args& args) {
  int64_t done = 0;
  if constexpr (std::is_same_v<Args, NumberArgs>) {
    if (kBlockValues % args.row.channels == 0) done = NormalizeBlocks(args);
  }
  const int64_t row_values = args.row.values;
  float* const out = args.out;
  int64_t values = 0;
  for (int64_t row = done, first = (args.first + done) % row_values; row < args.count; row += values, first = 0) {
    values = std::min(row_values - first, args.count - row);
    const float *const offset = args.row.offset + first, *const scale = args.row.scale + first;
#pragma GCC ivdep
    for (int64_t i = 0; i < values; ++i) {
      out[row + i] = (ValueAt(args.values, row + i) - offset[i]) * scale[i];
    }
  }
}
STARRING_DEFINE_CLONES(kNormalizePixels, NormalizeLoop, PixelArgs);
STARRING_DEFINE_CLONES(kNormalizeNumbers, NormalizeLoop, NumberArgs);

// The moments of some blocks of samples, by channel.
struct Moments {
  int64_t blocks = 0;
  double count = 0;             // of values per channel
  std::vector<double> mean;     // (channels)
  std::vector<double> squares;  // (channels): the sum of the squared distances from the mean
};

constexpr int64_t kMomentSamples = 256;  // of a block

// Adds f(value, place in a row) of each of `count` values to the accumulator of its place, as in PixelSums. `before`
// values of the block came earlier, so that the sums do not depend on the pieces in which a block is read.
template <class F>
void AddToRow(const StoredFloat* values, int64_t count, int64_t before, std::vector<double>& row, F f) {
  for (int64_t done = 0; done < count;) {
    const int64_t place = (before + done) % std::ssize(row);
    const int64_t width = std::min(std::ssize(row) - place, count - done);
    for (int64_t i = 0; i < width; ++i) row[place + i] += f(static_cast<double>(values[done + i]), place + i);
    done += width;
  }
}

// The sums of f over `samples` samples from `first` on, by channel.
template <class F>
std::vector<double> ChannelSums(const Dataset& dataset, int64_t first, int64_t samples, F f) {
  const int64_t channels = dataset.channels;
  std::vector<double> row(static_cast<size_t>(PixelsOfRow(channels, kSumRowValues) * channels));
  std::vector<double> sums(static_cast<size_t>(channels));
  int64_t before = 0;
  const int64_t piece = std::max<int64_t>(1, kSumBlockBytes / dataset.image_bytes());
  dataset.ForEachBlock(first, first + samples, piece, [&](std::span<const uint8_t> bytes, int64_t count) {
    const auto* const numbers = reinterpret_cast<const StoredFloat*>(bytes.data());
    const int64_t values = count * dataset.image_values();
    AddToRow(numbers, values, before, row, f);
    before += values;
  });
  for (size_t i = 0; i < row.size(); ++i) sums[i % static_cast<size_t>(channels)] += row[i];
  return sums;
}

// The moments of one block.
Moments MomentsOf(const Dataset& dataset, int64_t first, int64_t samples) {
  const int64_t values_per_channel = samples * dataset.height * dataset.width;
  Moments moments = {.blocks = 1,
                     .count = static_cast<double>(values_per_channel),
                     .mean = ChannelSums(dataset, first, samples, [](double x, int64_t) { return x; }),
                     .squares = {}};
  for (double& mean : moments.mean) mean /= moments.count;
  // A row begins with channel 0. Its values' means are repeated, so that the loop needs no channel arithmetic.
  std::vector<double> mean(static_cast<size_t>(PixelsOfRow(dataset.channels, kSumRowValues) * dataset.channels));
  for (size_t i = 0; i < mean.size(); ++i) mean[i] = moments.mean[i % static_cast<size_t>(dataset.channels)];
  const auto square = [&mean](double x, int64_t i) { return (x - mean[i]) * (x - mean[i]); };
  moments.squares = ChannelSums(dataset, first, samples, square);
  return moments;
}

void Join(Moments& left, const Moments& right) {
  const double count = left.count + right.count;
  for (size_t c = 0; c < left.mean.size(); ++c) {
    const double distance = right.mean[c] - left.mean[c];
    left.mean[c] += distance * (right.count / count);
    left.squares[c] += right.squares[c] + distance * distance * (left.count * right.count / count);
  }
  left.count = count;
  left.blocks += right.blocks;
}

// Blocks are joined as a binary counter adds ones; those left at the end from the right.
Moments MomentsOf(const Dataset& dataset) {
  std::vector<Moments> tree;
  const auto join_last = [&tree] {
    Join(tree[tree.size() - 2], tree.back());
    tree.pop_back();
  };
  for (int64_t first = 0; first < dataset.count; first += kMomentSamples) {
    tree.push_back(MomentsOf(dataset, first, std::min(kMomentSamples, dataset.count - first)));
    while (tree.size() > 1 && tree[tree.size() - 2].blocks == tree.back().blocks) join_last();
  }
  while (tree.size() > 1) join_last();
  return std::move(tree.front());
}

Normalization NormalizationOfNumbers(const Dataset& dataset) {
  const Moments moments = MomentsOf(dataset);
  Normalization normalization = {.mean = {}, .deviation = {}, .type = FieldType::kNumbers};
  for (size_t c = 0; c < moments.mean.size(); ++c) {
    const auto deviation = static_cast<float>(std::sqrt(moments.squares[c] / moments.count));
    normalization.mean.push_back(static_cast<float>(moments.mean[c]));
    normalization.deviation.push_back(deviation < std::numeric_limits<float>::min() ? 1.0f : deviation);
  }
  return normalization;
}

// Adds the sums and the sums of squares of pixels, by channel, to `totals`. `pixels` begin with channel 0.
void AddPixels(std::span<const uint8_t> pixels, int64_t channels, std::vector<uint64_t>& totals) {
  const int64_t row_bytes = PixelsOfRow(channels, kSumRowValues) * channels;
  const uint8_t* bytes = pixels.data();
  int64_t left = std::ssize(pixels);
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
}

}  // namespace

Normalization NormalizationOf(const Dataset& dataset, Normalize normalize) {
  if (normalize == Normalize::kNone) {
    const auto channels = static_cast<size_t>(dataset.channels);
    return {.mean = std::vector<float>(channels, 0.0f),
            .deviation = std::vector<float>(channels, 1.0f),
            .type = dataset.type};
  }
  if (dataset.type == FieldType::kNumbers) return NormalizationOfNumbers(dataset);
  return NormalizationFromSums(PixelSums(dataset, 0, dataset.count));
}

std::vector<double> PixelSums(const Dataset& dataset, int64_t begin, int64_t end) {
  CHECK_GE(begin, 0);
  CHECK_LE(begin, end);
  CHECK_LE(end, dataset.count);
  CHECK(dataset.type == FieldType::kPixels);
  std::vector<uint64_t> totals(static_cast<size_t>(2 * dataset.channels));
  const int64_t block = std::max<int64_t>(1, kSumBlockBytes / dataset.image_bytes());
  dataset.ForEachBlock(begin, end, block,
                       [&](std::span<const uint8_t> bytes, int64_t) { AddPixels(bytes, dataset.channels, totals); });
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

NormalizerConstants NormalizerConstantsOf(const Normalization& normalization) {
  const double unit = normalization.type == FieldType::kPixels ? 255.0 : 1.0;
  NormalizerConstants constants;
  for (size_t c = 0; c < normalization.mean.size(); ++c) {
    constants.offset.push_back(static_cast<float>(unit * normalization.mean[c]));
    constants.scale.push_back(static_cast<float>(1.0 / (unit * normalization.deviation[c])));
  }
  return constants;
}

Normalizer::Normalizer(const Normalization& normalization, InstructionSet instruction_set)
    : type_(normalization.type), instruction_set_(instruction_set), channels_(std::ssize(normalization.mean)) {
  CHECK_EQ(normalization.mean.size(), normalization.deviation.size());
  CHECK(!normalization.mean.empty());
  const NormalizerConstants constants = NormalizerConstantsOf(normalization);
  // The constants are repeated for a row of pixels, so that value i of a row needs constant i and no channel
  // arithmetic.
  const int64_t pixels = PixelsOfRow(std::ssize(constants.offset), kNormalizeRowValues);
  for (int64_t pixel = 0; pixel < pixels; ++pixel) {
    offset_.insert(offset_.end(), constants.offset.begin(), constants.offset.end());
    scale_.insert(scale_.end(), constants.scale.begin(), constants.scale.end());
  }
}

void Normalizer::Run(const uint8_t* values, int64_t count, float* out, int64_t first) const {
  const RowConstants row = {
      .offset = offset_.data(), .scale = scale_.data(), .values = std::ssize(offset_), .channels = channels_};
  const int clone = static_cast<int>(instruction_set_);
  first %= row.values;
  if (type_ == FieldType::kPixels) {
    kNormalizePixels[clone]({.values = values, .count = count, .first = first, .row = row, .out = out});
  } else {
    const auto* const numbers = reinterpret_cast<const StoredFloat*>(values);
    kNormalizeNumbers[clone]({.values = numbers, .count = count, .first = first, .row = row, .out = out});
  }
}

}  // namespace starring
