#include "worker/data/files/sample_layout.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "common/arithmetic/instruction_set.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

constexpr int64_t kGuardBytes = 64;
constexpr uint8_t kGuard = 0xa5;

std::vector<uint8_t> Noise(int64_t bytes) {
  std::vector<uint8_t> noise(static_cast<size_t>(bytes));
  for (int64_t i = 0; i < bytes; ++i) noise[i] = static_cast<uint8_t>((i + 7) * 2654435761u >> 13);
  return noise;
}

// The decoded bytes, by each instruction set: all are the same, and no byte after them is written. Neither end is
// aligned.
std::vector<uint8_t> Decode(const SampleLayout& layout, const std::vector<uint8_t>& stored) {
  EXPECT_EQ(layout.stored_bytes(), std::ssize(stored));
  std::vector<uint8_t> shifted(stored.size() + 1), first;
  std::memcpy(shifted.data() + 1, stored.data(), stored.size());
  for (int set = 0; set <= static_cast<int>(BestInstructionSet()); ++set) {
    std::vector<uint8_t> out(static_cast<size_t>(3 + layout.sample_bytes() + kGuardBytes), kGuard);
    DecodeSample(layout, shifted.data() + 1, out.data() + 3, static_cast<InstructionSet>(set));
    for (int64_t i = 0; i < kGuardBytes; ++i) EXPECT_EQ(out[out.size() - 1 - i], kGuard) << "instruction set " << set;
    const std::vector<uint8_t> decoded(out.begin() + 3, out.end() - kGuardBytes);
    if (set == 0) first = decoded;
    EXPECT_EQ(decoded, first) << "instruction set " << set;
  }
  return first;
}

template <class T>
std::vector<uint8_t> BytesOf(const std::vector<T>& numbers) {
  std::vector<uint8_t> bytes(numbers.size() * sizeof(T));
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

std::vector<float> Floats(const std::vector<uint8_t>& bytes) {
  std::vector<float> floats(bytes.size() / sizeof(float));
  std::memcpy(floats.data(), bytes.data(), bytes.size());
  return floats;
}

// Sides around the vectors' lengths, and those of CIFAR.
TEST(SampleLayoutTest, PlanesAreInterleaved) {
  for (const auto& [height, width] : {std::pair(1, 1), {1, 15}, {1, 16}, {1, 17}, {5, 7}, {32, 32}, {33, 31}}) {
    const int64_t pixels = int64_t{height} * width;
    const std::vector<uint8_t> planes = Noise(3 * pixels);
    const std::vector<uint8_t> image =
        Decode({.order = ValueOrder::kPlanes, .height = height, .width = width, .channels = 3}, planes);
    for (int64_t i = 0; i < 3 * pixels; ++i) ASSERT_EQ(image[i], planes[i % 3 * pixels + i / 3]) << pixels;
  }
}

// Sides below, at and between those of whole blocks.
TEST(SampleLayoutTest, LyingImagesAreTurned) {
  for (const auto& [height, width] :
       {std::pair(1, 1), {15, 40}, {40, 15}, {16, 16}, {17, 16}, {16, 31}, {28, 28}, {33, 47}}) {
    const std::vector<uint8_t> lying = Noise(int64_t{height} * width);
    const std::vector<uint8_t> image =
        Decode({.order = ValueOrder::kTransposed, .height = height, .width = width, .channels = 1}, lying);
    for (int64_t row = 0; row < height; ++row) {
      for (int64_t column = 0; column < width; ++column) {
        ASSERT_EQ(image[row * width + column], lying[column * height + row]) << height << " x " << width;
      }
    }
  }
}

// All that there are, and lengths that are not those of vectors.
TEST(SampleLayoutTest, HalvesAreExact) {
  std::vector<uint16_t> halves;
  for (int bits = 0; bits < 1 << 16; ++bits) {
    if (!std::isnan(FromHalf(static_cast<uint16_t>(bits)))) halves.push_back(static_cast<uint16_t>(bits));
  }
  for (int left = 8; left > 0; --left, halves.pop_back()) {
    const int64_t count = std::ssize(halves);
    const SampleLayout layout = {
        .order = ValueOrder::kHalf, .height = 1, .width = 1, .channels = count, .value_bytes = 4};
    const std::vector<float> floats = Floats(Decode(layout, BytesOf(halves)));
    for (int64_t i = 0; i < count; ++i) ASSERT_EQ(floats[i], FromHalf(halves[i])) << halves[i];
  }
}

TEST(SampleLayoutTest, HalvesOfTheStandard) {
  const std::vector<std::pair<uint16_t, float>> kKnown = {
      {0x3c00, 1.0f},     {0xc000, -2.0f},           {0x7bff, 65504.0f}, {0x0001, 0x1p-24f},
      {0x0400, 0x1p-14f}, {0x3555, 0.333251953125f}, {0x7c00, HUGE_VALF}};
  for (const auto& [bits, value] : kKnown) EXPECT_EQ(FromHalf(bits), value) << bits;
  EXPECT_TRUE(std::signbit(FromHalf(0x8000)));
  EXPECT_TRUE(std::isnan(FromHalf(0x7e00)));
}

// To the nearest, ties to even; below the smallest, too.
TEST(SampleLayoutTest, DoublesAreRounded) {
  const std::vector<double> numbers = {
      0.1, 1 + 0x1p-24, 1 + 0x3p-24, -0x1.8p-149, 0x1p-150, -0.0, 1e-300, 3.4e38, 7, 0x1p-140 + 0x1p-149,
      0.1, 0.2,         0.3,         0.4,         0.5,      0.6,  0.7};
  const SampleLayout layout = {
      .order = ValueOrder::kDouble, .height = 1, .width = 1, .channels = std::ssize(numbers), .value_bytes = 4};
  const std::vector<float> floats = Floats(Decode(layout, BytesOf(numbers)));
  for (size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(floats[i], static_cast<float>(numbers[i])) << i;
  EXPECT_EQ(floats[1], 1.0f);
  EXPECT_EQ(floats[2], 1 + 0x1p-22f);
  EXPECT_EQ(floats[3], -0x1p-148f);
}

}  // namespace
}  // namespace starring
