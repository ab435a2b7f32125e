#include "worker/data/crop_flip.h"

#include <algorithm>
#include <cstring>

#include "common/arithmetic/instruction_set.h"
#include "common/arithmetic/philox.h"

namespace starring {
namespace {

using Bytes16 = uint8_t __attribute__((vector_size(16)));

// Byte i of the result is bytes[places[i]]. REQUIRES: places[i] < 16.
[[gnu::always_inline]] inline Bytes16 Shuffle(Bytes16 bytes, Bytes16 places) {
#if defined(__clang__)  // compiles tests with sanitizers, and has nothing for places that are not constants
  Bytes16 result;
  for (int i = 0; i < 16; ++i) result[i] = bytes[places[i]];
  return result;
#else
  return __builtin_shuffle(bytes, places);
#endif
}

// A rectangle of pixels inside an image: `rows` rows of `row_bytes` bytes; the next row begins `stride` bytes later.
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

// Which byte of a 16-byte vector goes where when a group of pixels, as many as 16 bytes hold, is reversed.
struct GroupReversal {
  int64_t group_bytes = 0;
  uint8_t last[16] = {};   // takes the last group of the 16 bytes, reversed; the bytes after it are ignored
  uint8_t first[16] = {};  // takes the first group, reversed, as two halves: its first 8 bytes, then its last 8
};

// REQUIRES: channels <= 16, so that a group has more than 8 bytes.
GroupReversal MakeGroupReversal(int64_t channels) {
  GroupReversal reversal;
  uint8_t reversed[16] = {};
  int64_t bytes = 0;
  for (int64_t pixel = 16 / channels - 1; pixel >= 0; --pixel) {
    for (int64_t c = 0; c < channels; ++c) reversed[bytes++ & 15] = static_cast<uint8_t>(pixel * channels + c);
  }
  for (int64_t i = 0; i < 16; ++i) reversal.last[i] = static_cast<uint8_t>(16 - bytes + reversed[i]);
  std::memcpy(reversal.first, reversed, 8);
  std::memcpy(reversal.first + 8, reversed + bytes - 8, 8);
  reversal.group_bytes = bytes;
  return reversal;
}

struct ReverseRowsArgs {
  Rectangle shape;
  const GroupReversal& reversal;
  const uint8_t* in;
  uint8_t* out;
};

// Reverses each row, one group of pixels at a time, beginning with the last. REQUIRES: shape.row_bytes >= 16.
[[gnu::always_inline]] inline void ReverseRowsLoop(const ReverseRowsArgs& args) {
  const auto [shape, reversal, in, out] = args;
  const int64_t group_bytes = reversal.group_bytes;
  Bytes16 last;
  Bytes16 first;
  std::memcpy(&last, reversal.last, 16);
  std::memcpy(&first, reversal.first, 16);
  for (int64_t row = 0; row < shape.rows; ++row) {
    const uint8_t* source = in + row * shape.stride;
    uint8_t* target = out + row * shape.stride;
    int64_t left = shape.row_bytes;  // bytes at the front of `source` that are not yet in `target`
    for (; left >= 16; left -= group_bytes, target += group_bytes) {
      Bytes16 pixels;
      std::memcpy(&pixels, source + left - 16, 16);
      pixels = Shuffle(pixels, last);
      // Writes up to 7 bytes after the group. They are inside the row, and the next group overwrites them.
      std::memcpy(target, &pixels, 16);
    }
    if (left == 0) continue;
    // Fewer bytes than a vector are left: the row's first group is stored again as a whole, in two halves that end
    // exactly where the row ends. A 16-byte store would write into the next row.
    Bytes16 pixels;
    std::memcpy(&pixels, source, 16);
    pixels = Shuffle(pixels, first);
    target += left - group_bytes;
    std::memcpy(target, &pixels, 8);
    std::memcpy(target + group_bytes - 8, reinterpret_cast<const uint8_t*>(&pixels) + 8, 8);
  }
}
STARRING_DEFINE_CLONES(kReverseRows, ReverseRowsLoop, ReverseRowsArgs);

void ReversePixelByPixel(const Rectangle& shape, int64_t channels, const uint8_t* in, uint8_t* out) {
  for (int64_t row = 0; row < shape.rows; ++row) {
    const uint8_t* source = in + row * shape.stride + shape.row_bytes;
    uint8_t* target = out + row * shape.stride;
    for (int64_t left = shape.row_bytes; left > 0; left -= channels) {
      source -= channels;
      for (int64_t c = 0; c < channels; ++c) *target++ = source[c];
    }
  }
}

void ReverseRows(const Rectangle& shape, int64_t channels, const uint8_t* in, uint8_t* out) {
  // A pixel that is wider than a vector, or a row that is shorter than one, has no 16 bytes to load inside the row.
  if (channels > 16 || shape.row_bytes < 16) return ReversePixelByPixel(shape, channels, in, out);
  const GroupReversal reversal = MakeGroupReversal(channels);
  kReverseRows[static_cast<int>(BestInstructionSet())]({.shape = shape, .reversal = reversal, .in = in, .out = out});
}

}  // namespace

// Each sample has a block of random words in each epoch, so the result does not depend on which thread draws it or
// when.
CropFlip DrawCropFlip(uint64_t seed, int64_t epoch, int64_t sample) {
  const RandomKey key{.seed = seed, .purpose = RandomPurpose::kAugment, .epoch = static_cast<uint32_t>(epoch)};
  const PhiloxWords words = key.At(static_cast<uint64_t>(sample));
  return {.top = BelowN(words[0], 2 * kCropPadding + 1),
          .left = BelowN(words[1], 2 * kCropPadding + 1),
          .flip = words[2] >> 31 ? CropFlip::Flip::kYes : CropFlip::Flip::kNo};
}

void ApplyCropFlip(const CropFlip& crop, const ImageShape& shape, const uint8_t* in, uint8_t* out) {
  // Row y of the crop is row y + down of the image if there is such a row, otherwise zero; columns likewise.
  const int64_t down = crop.top - kCropPadding;
  const int64_t right = crop.left - kCropPadding;
  const int64_t y_begin = std::max<int64_t>(0, -down);
  const int64_t y_end = std::min(shape.height, shape.height - down);
  const int64_t x_begin = std::max<int64_t>(0, -right);
  const int64_t x_end = std::min(shape.width, shape.width - right);
  const int64_t stride = shape.width * shape.channels;
  // The padding is zero. Without a shift there is none: every byte of `out` is overwritten below.
  if (down != 0 || right != 0) std::memset(out, 0, static_cast<size_t>(shape.height * stride));
  if (y_begin >= y_end || x_begin >= x_end) return;
  const Rectangle visible{.rows = y_end - y_begin, .row_bytes = (x_end - x_begin) * shape.channels, .stride = stride};
  const uint8_t* source = in + (y_begin + down) * stride + (x_begin + right) * shape.channels;
  // A flip mirrors the place as well: the visible columns begin as far from the left as they would have ended from the
  // right.
  if (crop.flip == CropFlip::Flip::kYes) {
    ReverseRows(visible, shape.channels, source, out + y_begin * stride + (shape.width - x_end) * shape.channels);
  } else {
    CopyRows(visible, source, out + y_begin * stride + x_begin * shape.channels);
  }
}

}  // namespace starring
