#include "kernels/cuda/patch_geometry.h"

#include <cstdint>
#include <set>
#include <tuple>

#include "gtest/gtest.h"

namespace starring::cuda {
namespace {

TEST(PatchGeometryTest, OutputsThatSeeAreThoseWhoseWindowCoversThePlace) {
  for (int32_t at = 0; at < 12; ++at) {
    for (int32_t kernel = 1; kernel <= 5; ++kernel) {
      for (int32_t stride = 1; stride <= 4; ++stride) {
        for (int32_t out = 0; out <= 6; ++out) {
          const OutputRange range = OutputsThatSee(at, kernel, Divisor(stride), out);
          ASSERT_GE(range.begin, 0);
          ASSERT_LE(range.end, out);
          for (int32_t o = 0; o < out; ++o) {
            ASSERT_EQ(range.begin <= o && o < range.end, o * stride <= at && at < o * stride + kernel)
                << "output " << o << " of " << out << ", place " << at << ", kernel " << kernel << ", stride "
                << stride;
          }
        }
      }
    }
  }
}

// Two images of 5 x 4 pixels and 3 channels, with a window of 3 x 2 pixels, other strides along the two sides, and
// padding.
PatchShape Shape() {
  return {.images = 2,
          .in_height = 5,
          .in_width = 4,
          .channels = 3,
          .out_height = 3,
          .out_width = 5,
          .kernel_height = 3,
          .kernel_width = 2,
          .stride_height = 2,
          .stride_width = 1,
          .padding_height = 1,
          .padding_width = 1};
}

TEST(PatchGeometryTest, WindowsBeginInThePadding) {
  const PatchGeometry g(Shape());
  const ImagePlace first = WindowOf(g, 0), last = WindowOf(g, 29);
  EXPECT_EQ(std::tuple(first.image, first.h, first.w), std::tuple(0, -1, -1));
  EXPECT_EQ(std::tuple(last.image, last.h, last.w), std::tuple(1, 3, 3));
  EXPECT_FALSE(IsInside(g, first.h, first.w));
  EXPECT_TRUE(IsInside(g, last.h, last.w));
  EXPECT_FALSE(IsInside(g, last.h, last.w + 1));
}

TEST(PatchGeometryTest, WindowAndPaddedPixelInvertEachOther) {
  const PatchShape shape = Shape();
  const PatchGeometry g(shape);
  // Pixel, an output that sees it, and the place of its window that does.
  std::set<std::tuple<int64_t, int64_t, int32_t>> from_outputs, from_pixels;
  for (int64_t output = 0; output < shape.rows(); ++output) {
    const ImagePlace window = WindowOf(g, static_cast<uint32_t>(output));
    for (int32_t place = 0; place < g.kernel_height_size * g.kernel_width_size; ++place) {
      const int32_t h = window.h + place / g.kernel_width_size, w = window.w + place % g.kernel_width_size;
      if (!IsInside(g, h, w)) continue;
      from_outputs.emplace(InputIndex(g, window.image, h, w) / shape.channels, output, place);
    }
  }
  for (int64_t pixel = 0; pixel < shape.images * shape.in_height * shape.in_width; ++pixel) {
    const PixelsOutputs seen = OutputsOfPixel(g, static_cast<uint32_t>(pixel));
    for (int32_t row = seen.rows.begin; row < seen.rows.end; ++row) {
      for (int32_t column = seen.columns.begin; column < seen.columns.end; ++column) {
        const OutputAndPlace at = OutputAt(g, seen.pixel, row, column);
        from_pixels.emplace(pixel, at.output, at.place);
      }
    }
  }
  EXPECT_EQ(from_pixels, from_outputs);
  EXPECT_FALSE(from_outputs.empty());
}

}  // namespace
}  // namespace starring::cuda
