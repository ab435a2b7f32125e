// Test data whose sums show the order in which they were made.
#ifndef STARRING_TESTS_COMMON_ARITHMETIC_WILD_NUMBERS_H_
#define STARRING_TESTS_COMMON_ARITHMETIC_WILD_NUMBERS_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

namespace starring {

// Numbers of very different size: any other order of additions gives other bits.
inline std::vector<float> WildNumbers(int64_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> mantissa(-1, 1);
  std::uniform_int_distribution<int> exponent(-12, 12);
  std::vector<float> values(count);
  for (float& value : values) value = std::ldexp(mantissa(generator), exponent(generator));
  return values;
}

// As EXPECT_EQ sees them, NaN would differ from itself and -0 equal 0.
inline bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

// The bytes of `values` in pieces of `lengths` (taken in turn, again and again), each in memory of its own, `shift`
// bytes after an aligned address.
class CutMessage {
 public:
  CutMessage(std::span<const float> values, const std::vector<size_t>& lengths, size_t shift) {
    const std::span<const std::byte> bytes = std::as_bytes(values);
    for (size_t at = 0, i = 0; at < bytes.size(); ++i) {
      const size_t length = std::min(lengths[i % lengths.size()], bytes.size() - at);
      memory_.emplace_back(length + shift);
      std::copy_n(bytes.begin() + at, length, memory_.back().begin() + shift);
      at += length;
    }
    for (const auto& memory : memory_) pieces_.push_back(std::span(memory).subspan(shift));
  }
  CutMessage(CutMessage&&) = default;
  const std::vector<std::span<const std::byte>>& pieces() const { return pieces_; }

 private:
  std::vector<std::vector<std::byte>> memory_;
  std::vector<std::span<const std::byte>> pieces_;
};

}  // namespace starring

#endif  // STARRING_TESTS_COMMON_ARITHMETIC_WILD_NUMBERS_H_
