#include "worker/data/normalization.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/data/dataset_readers.h"

namespace starring {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

Dataset MakeDataset(int64_t count, int64_t height, int64_t width, int64_t channels) {
  DatasetOptions options;
  options.synthetic_train_count = count;
  options.synthetic_test_count = 1;
  options.synthetic_height = height;
  options.synthetic_width = width;
  options.synthetic_channels = channels;
  return std::move(MakeSynthetic(options)->train);
}

std::vector<double> ReferenceSums(const Dataset& dataset, int64_t begin, int64_t end) {
  const int64_t channels = dataset.channels;
  std::vector<double> sums(static_cast<size_t>(2 * channels + 1));
  for (int64_t i = begin * dataset.image_bytes(); i < end * dataset.image_bytes(); ++i) {
    const double pixel = dataset.images[i];
    sums[i % channels] += pixel;
    sums[channels + i % channels] += pixel * pixel;
    if (i % channels == 0) ++sums[2 * channels];
  }
  return sums;
}

TEST(NormalizationTest, SumsAreExact) {
  for (const int64_t channels : {1, 2, 3, 4, 7}) {
    for (const int64_t width : {1, 5, 28, 67}) {
      const Dataset dataset = MakeDataset(37, 11, width, channels);
      for (const auto& [begin, end] : {std::pair{0, 37}, {0, 0}, {36, 37}, {5, 20}}) {
        EXPECT_EQ(PixelSums(dataset, begin, end), ReferenceSums(dataset, begin, end))
            << channels << " channels, width " << width << ", images " << begin << " to " << end;
      }
    }
  }
}

// With so many pixels of 255 a 32-bit sum of squares overflows: more than 66051 rows of 64 pixels.
TEST(NormalizationTest, SumsDoNotOverflow) {
  Dataset dataset;
  dataset.count = 67000;
  dataset.height = 8;
  dataset.width = 8;
  dataset.channels = 1;
  dataset.images.assign(67000 * 64, 255);
  const double count = 67000 * 64;
  EXPECT_THAT(PixelSums(dataset, 0, dataset.count), ElementsAre(255 * count, 255.0 * 255 * count, count));
}

TEST(NormalizationTest, DoesNotDependOnHowTheImagesAreCut) {
  const Dataset dataset = MakeDataset(100, 9, 9, 3);
  const auto whole = PixelSums(dataset, 0, 100);
  for (const int ranks : {2, 3, 7}) {
    std::vector<double> added(whole.size());
    for (int rank = 0; rank < ranks; ++rank) {
      const auto part = PixelSums(dataset, 100 * rank / ranks, 100 * (rank + 1) / ranks);
      for (size_t i = 0; i < added.size(); ++i) added[i] += part[i];
    }
    EXPECT_EQ(added, whole);
  }
}

TEST(NormalizationTest, MeanAndDeviationOfKnownPixels) {
  // Channel 0: 0, 255, 0, 255; channel 1: 51 everywhere but one 102.
  Dataset dataset;
  dataset.count = 1;
  dataset.height = 2;
  dataset.width = 2;
  dataset.channels = 2;
  dataset.images = {0, 51, 255, 51, 0, 51, 255, 102};
  const Normalization normalization = NormalizationFromSums(PixelSums(dataset, 0, 1));
  EXPECT_THAT(normalization.mean, ElementsAre(0.5f, 0.25f));
  EXPECT_THAT(normalization.deviation, ElementsAre(0.5f, static_cast<float>(0.2 * std::sqrt(3.0) / 4)));
}

TEST(NormalizationTest, AConstantChannelGetsDeviationOne) {
  Dataset dataset = MakeDataset(1000, 28, 28, 1);
  for (const uint8_t pixel : {0, 1, 77, 255}) {
    dataset.images.assign(dataset.images.size(), pixel);
    EXPECT_THAT(NormalizationFromSums(PixelSums(dataset, 0, 1000)).deviation, Each(1.0f)) << int{pixel};
  }
  // A channel in which one pixel differs is not constant.
  dataset.images[12345] = 254;
  EXPECT_LT(NormalizationFromSums(PixelSums(dataset, 0, 1000)).deviation[0], 1e-4);
}

// (count, pixels, channels) numbers.
Dataset MakeNumbers(int64_t count, int64_t pixels, int64_t channels, const std::vector<float>& numbers) {
  Dataset dataset{.count = count,
                  .height = 1,
                  .width = pixels,
                  .channels = channels,
                  .type = FieldType::kNumbers,
                  .images = std::vector<uint8_t>(numbers.size() * sizeof(float)),
                  .labels = {}};
  EXPECT_EQ(std::ssize(dataset.images), count * dataset.image_bytes());
  std::memcpy(dataset.images.data(), numbers.data(), dataset.images.size());
  return dataset;
}

TEST(NormalizationTest, MomentsOfNumbersAreThoseInLongDouble) {
  for (const auto& [count, pixels, channels] :
       {std::tuple{1, 1, 1}, {1, 3, 2}, {255, 1, 5}, {256, 1, 1}, {257, 2, 3}, {1300, 7, 300}, {2048, 1, 28}}) {
    SCOPED_TRACE(::testing::Message() << count << " x " << pixels << " x " << channels);
    std::vector<float> numbers(static_cast<size_t>(count * pixels * channels));
    // A mean far from zero: a sum of squares in float64 would lose the deviation of channel 1.
    uint32_t state = 1;
    for (size_t i = 0; i < numbers.size(); ++i) {
      state = state * 1664525 + 1013904223;
      const size_t c = i % static_cast<size_t>(channels);
      numbers[i] = static_cast<float>(state >> 16 & 255) + (c == 1 ? 1e7f : static_cast<float>(c) * -3);
    }
    const Normalization normalization = NormalizationOf(MakeNumbers(count, pixels, channels, numbers));
    ASSERT_EQ(std::ssize(normalization.mean), channels);
    for (int64_t c = 0; c < channels; ++c) {
      const auto values = static_cast<long double>(count * pixels);
      long double sum = 0, squares = 0;
      for (size_t i = c; i < numbers.size(); i += channels) sum += numbers[i];
      for (size_t i = c; i < numbers.size(); i += channels) {
        squares += (numbers[i] - sum / values) * (numbers[i] - sum / values);
      }
      const auto deviation = static_cast<float>(std::sqrt(squares / values));
      EXPECT_FLOAT_EQ(normalization.mean[c], static_cast<float>(sum / values)) << "channel " << c;
      EXPECT_FLOAT_EQ(normalization.deviation[c], deviation == 0 ? 1 : deviation) << "channel " << c;
    }
  }
}

TEST(NormalizationTest, ConstantNumbersGetDeviationOne) {
  for (const float number : {0.0f, 0.1f, -7e30f, 1e-40f}) {
    const auto dataset = MakeNumbers(1000, 3, 1, std::vector<float>(3000, number));
    EXPECT_THAT(NormalizationOf(dataset).deviation, ElementsAre(1.0f)) << number;
  }
  // A deviation without an inverse in float32 counts as none, the largest is one.
  EXPECT_THAT(NormalizationOf(MakeNumbers(2, 1, 1, {0, 1e-39f})).deviation, ElementsAre(1.0f));
  EXPECT_THAT(NormalizationOf(MakeNumbers(2, 1, 1, {-3e38f, 3e38f})).deviation, ElementsAre(3e38f));
}

TEST(NormalizationTest, NoneLeavesNumbersAndDividesPixels) {
  const Dataset numbers = MakeNumbers(2, 1, 2, {-1, 0.3f, 1e9f, 4});
  std::vector<float> out(4);
  Normalizer(NormalizationOf(numbers, Normalize::kNone)).Run(numbers.images.data(), 4, out.data());
  EXPECT_THAT(out, ElementsAre(-1, 0.3f, 1e9f, 4));
  const Dataset pixels = MakeDataset(2, 3, 3, 1);
  out.resize(18);
  Normalizer(NormalizationOf(pixels, Normalize::kNone)).Run(pixels.images.data(), 18, out.data());
  for (size_t i = 0; i < out.size(); ++i) EXPECT_FLOAT_EQ(out[i], static_cast<float>(pixels.images[i]) / 255);
}

Normalization MakeNormalization(size_t channels) {
  Normalization normalization;
  for (size_t c = 0; c < channels; ++c) {
    normalization.mean.push_back(0.1307f + 0.01f * static_cast<float>(c));
    normalization.deviation.push_back(0.3081f + 0.02f * static_cast<float>(c));
  }
  return normalization;
}

std::vector<uint8_t> Pixels(int64_t count) {
  std::vector<uint8_t> pixels(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) pixels[i] = static_cast<uint8_t>(i * 37 + i / 256);
  return pixels;
}

// Every pixel value in every channel, around the lengths where the loops end.
TEST(NormalizerTest, IsPixelMinusMeanOverDeviation) {
  for (const size_t channels : {1u, 2u, 3u, 4u, 10u}) {
    const Normalization normalization = MakeNormalization(channels);
    const Normalizer normalizer(normalization);
    for (const int64_t pixel_count : {0, 1, 3, 15, 16, 17, 255, 256, 257, 1024, 3000}) {
      const auto pixels = Pixels(pixel_count * static_cast<int64_t>(channels));
      std::vector<float> out(pixels.size() + 1, -77);
      normalizer.Run(pixels.data(), std::ssize(pixels), out.data());
      for (size_t i = 0; i < pixels.size(); ++i) {
        const size_t c = i % channels;
        ASSERT_NEAR(out[i], (pixels[i] / 255.0 - normalization.mean[c]) / normalization.deviation[c], 2e-6) << i;
      }
      EXPECT_EQ(out.back(), -77) << "written after the end";
    }
  }
}

TEST(NormalizerTest, EveryInstructionSetGivesTheSameBits) {
  const auto pixels = Pixels(3 * 1111);
  const Normalization normalization = MakeNormalization(3);
  std::vector<float> expected(pixels.size());
  Normalizer(normalization, InstructionSet::kBaseline).Run(pixels.data(), std::ssize(pixels), expected.data());
  for (int set = 0; set <= static_cast<int>(BestInstructionSet()); ++set) {
    std::vector<float> out(pixels.size());
    Normalizer(normalization, static_cast<InstructionSet>(set)).Run(pixels.data(), std::ssize(pixels), out.data());
    EXPECT_EQ(std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)), 0) << set;
  }
}

TEST(NormalizerTest, NumbersAreAtAnyFloatsAddress) {
  const std::vector<float> numbers = {-3, 5, 0.5f, 1e20f, 7, -0.25f};
  const Normalization normalization = {.mean = {0.5f, 2}, .deviation = {4, 0.5f}, .type = FieldType::kNumbers};
  for (int set = 0; set <= static_cast<int>(BestInstructionSet()); ++set) {
    for (size_t shift = 0; shift < 64; shift += sizeof(float)) {
      std::vector<uint8_t> bytes(shift + numbers.size() * sizeof(float));
      std::memcpy(bytes.data() + shift, numbers.data(), numbers.size() * sizeof(float));
      std::vector<float> out(numbers.size());
      Normalizer(normalization, static_cast<InstructionSet>(set)).Run(bytes.data() + shift, 6, out.data());
      EXPECT_THAT(out, ElementsAre(-0.875f, 6, 0, 2e20f, 1.625f, -4.5f));
    }
  }
}

// A piece begins anywhere in a sample: in a row of pixels, at its end, and in the middle of a pixel that is a row.
TEST(NormalizerTest, PiecesOfASample) {
  for (const int64_t channels : {1, 3, 1000}) {
    const auto pixels = Pixels(3 * 1000);
    const Normalizer normalizer(MakeNormalization(channels));
    std::vector<float> whole(pixels.size()), pieces(pixels.size());
    normalizer.Run(pixels.data(), std::ssize(pixels), whole.data());
    for (const int64_t piece : {7, 768, 1100}) {
      for (int64_t first = 0; first < std::ssize(pixels); first += piece) {
        normalizer.Run(pixels.data() + first, std::min(piece, std::ssize(pixels) - first), pieces.data() + first,
                       first);
      }
      EXPECT_EQ(pieces, whole) << channels << " channels, pieces of " << piece;
      std::ranges::fill(pieces, 0.0f);
    }
  }
}

// Numbers of 1 to 48 channels have blocks whose constants stay in registers, and a rest; those of 7 and 100 have none.
TEST(NormalizerTest, NumbersByBlocksAndByRowsHaveTheSameBits) {
  std::vector<float> numbers(2403);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = 0.37f * static_cast<float>(i % 991) - 100;
  const auto* const bytes = reinterpret_cast<const uint8_t*>(numbers.data());
  for (const size_t channels : {1u, 2u, 3u, 6u, 7u, 48u, 100u}) {
    Normalization normalization = MakeNormalization(channels);
    normalization.type = FieldType::kNumbers;
    const NormalizerConstants constants = NormalizerConstantsOf(normalization);
    for (int set = 0; set <= static_cast<int>(BestInstructionSet()); ++set) {
      const Normalizer normalizer(normalization, static_cast<InstructionSet>(set));
      for (const size_t piece : {5u, 48u, 100u, 2403u}) {
        std::vector<float> out(numbers.size());
        for (size_t first = 0; first < numbers.size(); first += piece) {
          const size_t count = std::min(piece, numbers.size() - first);
          normalizer.Run(bytes + first * sizeof(float), static_cast<int64_t>(count), out.data() + first,
                         static_cast<int64_t>(first));
        }
        for (size_t i = 0; i < numbers.size(); ++i) {
          const size_t c = i % channels;
          ASSERT_EQ(out[i], (numbers[i] - constants.offset[c]) * constants.scale[c])
              << i << " of " << channels << " channels, pieces of " << piece << ", set " << set;
        }
      }
    }
  }
}

TEST(NormalizerTest, ValuesDoNotDependOnAlignment) {
  const auto pixels = Pixels(200);
  const Normalizer normalizer(MakeNormalization(1));
  std::vector<float> expected(200);
  normalizer.Run(pixels.data(), 200, expected.data());
  for (int shift = 1; shift < 16; ++shift) {
    std::vector<float> out(200);
    normalizer.Run(pixels.data() + shift, 200 - shift, out.data() + shift);
    for (int i = shift; i < 200; ++i) ASSERT_EQ(out[i], expected[i]) << shift << ' ' << i;
  }
}

}  // namespace
}  // namespace starring
