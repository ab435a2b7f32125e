// Philox 4x32-10: a counter-based random generator. Salmon, Moraes, Dror, Shaw: "Parallel Random Numbers: As Easy as 1,
// 2, 3", SC 2011, section 3.3. There is no state: the same (key, counter) gives the same four words anywhere, in any
// order, on any device, so a run can be resumed, divided among threads or moved to a GPU without changing a bit.
//
// Key = the run's seed. Counter = {element low, element high, epoch-or-step, purpose << 24 | stream}: two uses never
// share a counter. Uses only std and constexpr, so that CUDA sources may include it.
#ifndef STARRING_COMMON_ARITHMETIC_PHILOX_H_
#define STARRING_COMMON_ARITHMETIC_PHILOX_H_

#include <array>
#include <cstdint>

namespace starring {

enum class RandomPurpose : uint32_t { kInit = 1, kShuffle = 2, kAugment = 3, kDropout = 4, kSynthetic = 5, kSplit = 7 };

using PhiloxWords = std::array<uint32_t, 4>;

constexpr PhiloxWords Philox4x32(PhiloxWords counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

struct RandomKey {
  uint64_t seed = 0;
  RandomPurpose purpose = RandomPurpose::kInit;
  uint32_t stream = 0;  // below 2^24: a tensor's or a layer's number
  uint32_t epoch = 0;   // epoch, or step for dropout

  // The four words of `element` (a sample, or a group of four elements).
  constexpr PhiloxWords At(uint64_t element) const {
    return Philox4x32({static_cast<uint32_t>(element), static_cast<uint32_t>(element >> 32), epoch,
                       static_cast<uint32_t>(purpose) << 24 | stream},
                      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  }
};

// Uniform in [0, 1) with 24 bits: exact in float.
constexpr float UnitFloat(uint32_t word) { return static_cast<float>(word >> 8) * 0x1.0p-24f; }

// Uniform in [0, n) by multiply and shift; the bias is below n / 2^32.
constexpr uint32_t BelowN(uint32_t word, uint32_t n) { return static_cast<uint32_t>((uint64_t{word} * n) >> 32); }

}  // namespace starring

#endif  // STARRING_COMMON_ARITHMETIC_PHILOX_H_
