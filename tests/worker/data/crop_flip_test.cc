#include "worker/data/crop_flip.h"

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "common/arithmetic/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

// The reference: the contract of ApplyCropFlip, pixel by pixel.
std::vector<uint8_t> Reference(const CropFlip& crop, const ImageShape& shape, const std::vector<uint8_t>& in) {
  std::vector<uint8_t> out;
  for (int64_t y = 0; y < shape.height; ++y) {
    for (int64_t x = 0; x < shape.width; ++x) {
      const int64_t from_y = y + crop.top - kCropPadding;
      const int64_t from_x = (crop.flip == CropFlip::Flip::kYes ? shape.width - 1 - x : x) + crop.left - kCropPadding;
      const bool inside = from_y >= 0 && from_y < shape.height && from_x >= 0 && from_x < shape.width;
      for (int64_t c = 0; c < shape.channels; ++c) {
        out.push_back(inside ? in[(from_y * shape.width + from_x) * shape.channels + c] : 0);
      }
    }
  }
  return out;
}

// Every crop of images of many widths and channels: rows shorter than a vector, equally long, and a little longer, and
// padding that is wider than the image.
TEST(CropFlipTest, EveryCropOfManyShapes) {
  for (const int64_t channels : {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 16, 17, 40}) {
    for (const int64_t width : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 28, 31, 32, 33, 100}) {
      const ImageShape shape{.height = 6, .width = width, .channels = channels};
      std::vector<uint8_t> image(static_cast<size_t>(shape.height * width * channels));
      for (size_t i = 0; i < image.size(); ++i) image[i] = static_cast<uint8_t>(i % 255 + 1);  // never 0
      for (int64_t top = 0; top <= 2 * kCropPadding; ++top) {
        for (int64_t left = 0; left <= 2 * kCropPadding; ++left) {
          for (const auto flip : {CropFlip::Flip::kNo, CropFlip::Flip::kYes}) {
            const CropFlip crop{.top = top, .left = left, .flip = flip};
            std::vector<uint8_t> out(image.size() + 16, 99);
            ApplyCropFlip(crop, shape, image.data(), out.data());
            for (size_t i = image.size(); i < out.size(); ++i) ASSERT_EQ(out[i], 99) << "written after the end";
            out.resize(image.size());
            ASSERT_EQ(out, Reference(crop, shape, image))
                << channels << " channels, width " << width << ", top " << top << ", left " << left;
          }
        }
      }
    }
  }
}

TEST(CropFlipTest, DrawIsTheDocumentedOne) {
  const auto words = [](uint32_t sample, uint32_t epoch) {
    return Philox4x32({sample, 0, epoch, 3u << 24}, {0x89abcdefu, 0x01234567u});
  };
  for (uint32_t sample = 0; sample < 100; ++sample) {
    const auto w = words(sample, 6);
    const CropFlip crop = DrawCropFlip(0x0123456789abcdefu, 6, sample);
    EXPECT_EQ(crop.top, static_cast<int64_t>(uint64_t{w[0]} * 9 >> 32));
    EXPECT_EQ(crop.left, static_cast<int64_t>(uint64_t{w[1]} * 9 >> 32));
    EXPECT_EQ(crop.flip == CropFlip::Flip::kYes, w[2] >= 1u << 31);
  }
}

// 162 cases, each expected 1000 times in 162000 draws, with deviation 32; the seed is fixed.
TEST(CropFlipTest, EveryCropIsAsLikelyAsEveryOther) {
  std::map<std::tuple<int64_t, int64_t, CropFlip::Flip>, int> counts;
  for (int64_t sample = 0; sample < 162000; ++sample) {
    const CropFlip crop = DrawCropFlip(1, 0, sample);
    ++counts[{crop.top, crop.left, crop.flip}];
  }
  EXPECT_EQ(counts.size(), 162u);
  for (const auto& [crop, count] : counts) EXPECT_NEAR(count, 1000, 150);
}

}  // namespace
}  // namespace starring
