#include "common/non_finite.h"

#include <bit>
#include <cmath>

namespace starring {
namespace {

// All exponent bits set: NaN or infinity. Integers, so that the loop vectorises without a promise about NaN.
__attribute__((target_clones("default", "avx2", "avx512f"))) bool AnyNonFinite(const float* values, int64_t count) {
  constexpr uint32_t kExponent = 0x7f800000u;
  uint32_t found = 0;
  for (int64_t i = 0; i < count; ++i) {
    found |= (std::bit_cast<uint32_t>(values[i]) & kExponent) == kExponent ? 1u : 0u;
  }
  return found != 0;
}

}  // namespace

std::optional<int64_t> FindNonFinite(std::span<const float> values) {
  if (!AnyNonFinite(values.data(), static_cast<int64_t>(values.size()))) return std::nullopt;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) return static_cast<int64_t>(i);
  }
  return std::nullopt;
}

}  // namespace starring
