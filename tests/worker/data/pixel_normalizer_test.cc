#include "worker/data/pixel_normalizer.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

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
      EXPECT_EQ(out.back(), -77) << "written behind the end";
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
