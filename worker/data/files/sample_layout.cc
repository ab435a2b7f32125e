#include "worker/data/files/sample_layout.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "common/base/check.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace starring {
namespace {

// The kernels want all channels of a pixel together (NHWC): image[3 * i + c] = planes[c * pixels + i], from pixel
// `first` on.
void InterleaveEach(const uint8_t* planes, int64_t pixels, uint8_t* image, int64_t first = 0) {
  const uint8_t *red = planes, *green = red + pixels, *blue = green + pixels;
  for (int64_t i = first; i < pixels; ++i) {
    image[3 * i] = red[i];
    image[3 * i + 1] = green[i];
    image[3 * i + 2] = blue[i];
  }
}

// Numbers are at any address in a file.
template <class T>
[[gnu::always_inline]] inline T NumberAt(const uint8_t* bytes, int64_t i) {
  T number;
  std::memcpy(&number, bytes + i * static_cast<int64_t>(sizeof number), sizeof number);
  return number;
}
[[gnu::always_inline]] inline void PutFloat(float number, uint8_t* bytes, int64_t i) {
  std::memcpy(bytes + i * static_cast<int64_t>(sizeof number), &number, sizeof number);
}

struct NumbersArgs {
  const uint8_t* numbers;
  int64_t count;
  uint8_t* out;
};

[[gnu::always_inline]] inline void RoundLoop(const NumbersArgs& args) {
  const auto [numbers, count, out] = args;
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) PutFloat(static_cast<float>(NumberAt<double>(numbers, i)), out, i);
}
STARRING_DEFINE_CLONES(kRound, RoundLoop, NumbersArgs);

constexpr int kBlock = 16;
using Bytes16 = uint8_t __attribute__((vector_size(kBlock)));

// Row r of the result, whose rows are `out_stride` bytes apart, has byte r of each of the 16 rows of `in`.
void TransposeBlock(const uint8_t* in, int64_t in_stride, uint8_t* out, int64_t out_stride) {
  Bytes16 rows[kBlock], paired[kBlock];
#pragma GCC unroll 16
  for (int i = 0; i < kBlock; ++i) std::memcpy(&rows[i], in + i * in_stride, kBlock);
    // The 256 bytes in their order have a number of 8 bits: 4 of the row and 4 of the column. Interleaving the upper
    // eight rows with the lower eight turns these bits by one, so four times exchange row and column. Unrolled, all
    // rows are in registers.
#pragma GCC unroll 4
  for (int turn = 0; turn < 4; ++turn) {
#pragma GCC unroll 8
    for (int i = 0; i < kBlock / 2; ++i) {
      const Bytes16 upper = rows[i], lower = rows[i + kBlock / 2];
      paired[2 * i] = __builtin_shufflevector(upper, lower, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      paired[2 * i + 1] =
          __builtin_shufflevector(upper, lower, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kBlock; ++i) rows[i] = paired[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < kBlock; ++i) std::memcpy(out + i * out_stride, &rows[i], kBlock);
}

void Transpose(const SampleLayout& layout, const uint8_t* lying, uint8_t* image) {
  const int64_t height = layout.height, width = layout.width;
  // An image smaller than a block cannot be covered by whole blocks.
  if (height < kBlock || width < kBlock) {
    for (int64_t row = 0; row < height; ++row) {
      for (int64_t column = 0; column < width; ++column) image[row * width + column] = lying[column * height + row];
    }
    return;
  }
  for (int64_t next_row = 0; next_row < height; next_row += kBlock) {
    for (int64_t next_column = 0; next_column < width; next_column += kBlock) {
      // The last block ends with the image, so it may repeat a part of the one before.
      const int64_t row = std::min(next_row, height - kBlock), column = std::min(next_column, width - kBlock);
      TransposeBlock(lying + column * height + row, height, image + row * width + column, width);
    }
  }
}

void ConvertEach(const NumbersArgs& args, int64_t first = 0) {
  for (int64_t i = first; i < args.count; ++i) PutFloat(FromHalf(NumberAt<uint16_t>(args.numbers, i)), args.out, i);
}

#if defined(__x86_64__)
// Half of a vector of AVX2, in which bytes can be moved.
constexpr int kLane = 16;
constexpr int kChannels = 3;

// 16 pixels are 48 bytes. Those of one channel have different places in the three lanes that these bytes fill, because
// 3 and 16 have no common divisor: so one permutation for each channel puts its bytes where they belong in all lanes.
struct Interleaving {
  uint8_t pixel[kChannels][2 * kLane];             // by channel and place: of the lane, the same in both halves
  uint8_t is_of_channel[3][kChannels][2 * kLane];  // by lane, channel and place: 0xff, or 0
};
constexpr Interleaving MakeInterleaving() {
  Interleaving result = {};
  for (int channel = 0; channel < kChannels; ++channel) {
    for (int pixel = 0; pixel < kLane; ++pixel) {
      const int byte = kChannels * pixel + channel, lane = byte / kLane;
      for (int place = byte % kLane; place < 2 * kLane; place += kLane) {
        result.pixel[channel][place] = static_cast<uint8_t>(pixel);
        result.is_of_channel[lane][channel][place] = 0xff;
      }
    }
  }
  return result;
}

// A copy of 32 bytes would be two of 16, which a load of 32 waits for.
__attribute__((target("avx2"))) inline __m256i Load32(const uint8_t* bytes) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
}

// 32 pixels at a time. A loop that the compiler vectorises takes more than twice as long.
__attribute__((target("avx2"))) void InterleaveByVectors(const uint8_t* planes, int64_t pixels, uint8_t* image) {
  static constexpr Interleaving kInterleaving = MakeInterleaving();
  __m256i places[kChannels], is_green[kChannels], is_blue[kChannels];
  for (int i = 0; i < kChannels; ++i) {
    places[i] = Load32(kInterleaving.pixel[i]);
    is_green[i] = Load32(kInterleaving.is_of_channel[i][1]);
    is_blue[i] = Load32(kInterleaving.is_of_channel[i][2]);
  }
  constexpr int64_t kAtOnce = 2 * kLane;
  const int64_t whole = pixels / kAtOnce * kAtOnce;
  for (int64_t first = 0; first < whole; first += kAtOnce) {
    __m256i channel[kChannels], lane[kChannels];
    for (int c = 0; c < kChannels; ++c) {
      channel[c] = _mm256_shuffle_epi8(Load32(planes + c * pixels + first), places[c]);
    }
    for (int i = 0; i < kChannels; ++i) {
      const __m256i red_and_green = _mm256_blendv_epi8(channel[0], channel[1], is_green[i]);
      lane[i] = _mm256_blendv_epi8(red_and_green, channel[2], is_blue[i]);
    }
    // The lower halves have the first 48 bytes, the upper ones the next.
    auto* const out = reinterpret_cast<__m256i*>(image + kChannels * first);
    _mm256_storeu_si256(out, _mm256_permute2x128_si256(lane[0], lane[1], 0x20));
    _mm256_storeu_si256(out + 1, _mm256_blend_epi32(lane[2], lane[0], 0xf0));
    _mm256_storeu_si256(out + 2, _mm256_permute2x128_si256(lane[1], lane[2], 0x31));
  }
  // A load of 32 bytes beyond the plane could leave the file's mapping, so the rest goes pixel by pixel.
  InterleaveEach(planes, pixels, image, whole);
}

// AVX2 does not promise it, though each processor with AVX2 has it.
bool ConvertsHalves() {
  static const bool has_f16c = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  }();
  return has_f16c;
}

// The compiler uses this instruction only where it is named.
__attribute__((target("avx,f16c"))) void ConvertByVectors(const NumbersArgs& args) {
  constexpr int64_t kAtOnce = 8;
  const auto [numbers, count, out] = args;
  const int64_t whole = count / kAtOnce * kAtOnce;
  for (int64_t i = 0; i < whole; i += kAtOnce) {
    const auto* const halves = reinterpret_cast<const __m128i*>(numbers + i * 2);
    _mm256_storeu_ps(reinterpret_cast<float*>(out + i * 4), _mm256_cvtph_ps(_mm_loadu_si128(halves)));
  }
  ConvertEach(args, whole);
}
#endif

void Interleave(const uint8_t* planes, int64_t pixels, uint8_t* image, InstructionSet instruction_set) {
#if defined(__x86_64__)
  if (instruction_set >= InstructionSet::kAvx2) return InterleaveByVectors(planes, pixels, image);
#endif
  InterleaveEach(planes, pixels, image);
}

void ConvertHalves(const NumbersArgs& args, InstructionSet instruction_set) {
#if defined(__x86_64__)
  if (instruction_set >= InstructionSet::kAvx2 && ConvertsHalves()) return ConvertByVectors(args);
#endif
  ConvertEach(args);
}

}  // namespace

float FromHalf(uint16_t bits) {
  constexpr int kFractionBits = 10, kExponentMax = 31, kBias = 15;
  const int fraction = bits & ((1 << kFractionBits) - 1), exponent = bits >> kFractionBits & kExponentMax;
  const float sign = bits >> 15 != 0 ? -1.0f : 1.0f;
  if (exponent == kExponentMax) return fraction == 0 ? sign * HUGE_VALF : NAN;
  // Without a leading 1 the exponent is that of the smallest number with one.
  const int leading = exponent == 0 ? 0 : 1 << kFractionBits;
  constexpr int kFloatFractionBits = 23, kFloatBias = 127;
  const int power = std::max(exponent, 1) - kBias - kFractionBits;
  // The power is from -24 to 5, so the bits are those of a normal float, and the product is exact.
  const auto scale = std::bit_cast<float>(static_cast<uint32_t>(power + kFloatBias) << kFloatFractionBits);
  return sign * static_cast<float>(leading + fraction) * scale;
}

int64_t SampleLayout::stored_bytes() const {
  switch (order) {
    case ValueOrder::kHalf:
      return values() * 2;
    case ValueOrder::kDouble:
      return values() * 8;
    case ValueOrder::kAsIs:
    case ValueOrder::kPlanes:
    case ValueOrder::kTransposed:
      break;
  }
  return sample_bytes();
}

void DecodeSample(const SampleLayout& layout, const uint8_t* stored, uint8_t* out, InstructionSet instruction_set) {
  const NumbersArgs numbers = {.numbers = stored, .count = layout.values(), .out = out};
  switch (layout.order) {
    case ValueOrder::kAsIs:
      std::memcpy(out, stored, static_cast<size_t>(layout.sample_bytes()));
      return;
    case ValueOrder::kPlanes:
      CHECK_EQ(layout.channels, 3);
      return Interleave(stored, layout.height * layout.width, out, instruction_set);
    case ValueOrder::kTransposed:
      CHECK_EQ(layout.channels, 1);
      return Transpose(layout, stored, out);
    case ValueOrder::kHalf:
      return ConvertHalves(numbers, instruction_set);
    case ValueOrder::kDouble:
      return kRound[static_cast<int>(instruction_set)](numbers);
  }
}

}  // namespace starring
