#include "worker/data/crop_flip.h"

#include <algorithm>
#include <cstring>

#include "common/instruction_set.h"
#include "common/philox.h"

namespace starring {
namespace {

using Bytes16 = uint8_t __attribute__((vector_size(16)));

// A rectangle of pixels inside an image: `rows` rows of `row_bytes` bytes, `stride` bytes from one to the next.
struct Rectangle {
  int64_t rows = 0;
  int64_t row_bytes = 0;
  int64_t stride = 0;
};

void CopyRows(const Rectangle& shape, const uint8_t* in, uint8_t* out) {
  for (int64_t row = 0; row < shape.rows; ++row) {
    std::memcpy(out + row * shape.stride, in + row * shape.stride, static_cast<size_t>(shape.row_bytes));
  }
}

struct ReverseRowsArgs {
  Rectangle shape;
  int64_t channels;
  const uint8_t* in;
  uint8_t* out;
};

// Row by row, the last pixel first: as many pixels at once as 16 bytes hold, by one shuffle.
[[gnu::always_inline]] inline void ReverseRowsLoop(const ReverseRowsArgs& args) {
  const auto [shape, channels, in, out] = args;
  const int64_t group_pixels = 16 / channels;
  const int64_t group_bytes = group_pixels * channels;
  // Picks the last group_pixels pixels of 16 bytes, the last one first. What lies behind them in the result does not
  // matter: the next group or the tail overwrites it.
  Bytes16 mask{};
  for (int64_t i = 0; i < group_bytes; ++i) {
    mask[i] = static_cast<uint8_t>(16 - (i / channels + 1) * channels + i % channels);
  }
  for (int64_t row = 0; row < shape.rows; ++row) {
    const uint8_t* source_end = in + row * shape.stride + shape.row_bytes;
    uint8_t* target = out + row * shape.stride;
    int64_t left = shape.row_bytes;
    while (left >= 16 && group_bytes > 0) {
      Bytes16 pixels;
      std::memcpy(&pixels, source_end - 16, 16);
      pixels = __builtin_shuffle(pixels, mask);
      std::memcpy(target, &pixels, 16);
      source_end -= group_bytes;
      target += group_bytes;
      left -= group_bytes;
    }
    for (; left > 0; left -= channels) {
      source_end -= channels;
      for (int64_t c = 0; c < channels; ++c) *target++ = source_end[c];
    }
  }
}
STARRING_DEFINE_CLONES(kReverseRows, ReverseRowsLoop, ReverseRowsArgs);

}  // namespace

CropFlip DrawCropFlip(uint64_t seed, int64_t epoch, int64_t sample) {
  const RandomKey key{.seed = seed, .purpose = RandomPurpose::kAugment, .epoch = static_cast<uint32_t>(epoch)};
  const PhiloxWords words = key.At(static_cast<uint64_t>(sample));
  return {.top = BelowN(words[0], 2 * kCropPadding + 1),
          .left = BelowN(words[1], 2 * kCropPadding + 1),
          .flip = words[2] >> 31 ? CropFlip::Flip::kYes : CropFlip::Flip::kNo};
}

void ApplyCropFlip(const CropFlip& crop, const ImageShape& shape, const uint8_t* in, uint8_t* out) {
  // Row y of the crop is row y + down of the image, as far as there is one; likewise for columns.
  const int64_t down = crop.top - kCropPadding;
  const int64_t right = crop.left - kCropPadding;
  const int64_t y_begin = std::max<int64_t>(0, -down);
  const int64_t y_end = std::min(shape.height, shape.height - down);
  const int64_t x_begin = std::max<int64_t>(0, -right);
  const int64_t x_end = std::min(shape.width, shape.width - right);
  const int64_t stride = shape.width * shape.channels;
  if (down != 0 || right != 0) std::memset(out, 0, static_cast<size_t>(shape.height * stride));
  if (y_begin >= y_end || x_begin >= x_end) return;
  const Rectangle visible{.rows = y_end - y_begin, .row_bytes = (x_end - x_begin) * shape.channels, .stride = stride};
  const uint8_t* source = in + (y_begin + down) * stride + (x_begin + right) * shape.channels;
  if (crop.flip == CropFlip::Flip::kYes) {
    uint8_t* target = out + y_begin * stride + (shape.width - x_end) * shape.channels;
    kReverseRows[static_cast<int>(BestInstructionSet())](
        {.shape = visible, .channels = shape.channels, .in = source, .out = target});
  } else {
    CopyRows(visible, source, out + y_begin * stride + x_begin * shape.channels);
  }
}

}  // namespace starring
