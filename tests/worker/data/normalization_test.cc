#include "worker/data/normalization.h"

#include <cmath>
#include <cstdint>
#include <cstring>
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
TEST(PixelNormalizerTest, IsPixelMinusMeanOverDeviation) {
  for (const size_t channels : {1u, 2u, 3u, 4u, 10u}) {
    const Normalization normalization = MakeNormalization(channels);
    const PixelNormalizer normalizer(normalization);
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

TEST(PixelNormalizerTest, EveryInstructionSetGivesTheSameBits) {
  const auto pixels = Pixels(3 * 1111);
  const Normalization normalization = MakeNormalization(3);
  std::vector<float> expected(pixels.size());
  PixelNormalizer(normalization, InstructionSet::kBaseline).Run(pixels.data(), std::ssize(pixels), expected.data());
  for (int set = 0; set <= static_cast<int>(BestInstructionSet()); ++set) {
    std::vector<float> out(pixels.size());
    PixelNormalizer(normalization, static_cast<InstructionSet>(set)).Run(pixels.data(), std::ssize(pixels), out.data());
    EXPECT_EQ(std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)), 0) << set;
  }
}

TEST(PixelNormalizerTest, ValuesDoNotDependOnAlignment) {
  const auto pixels = Pixels(200);
  const PixelNormalizer normalizer(MakeNormalization(1));
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
