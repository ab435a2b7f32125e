#include "common/arithmetic/non_finite.h"

#include <bit>
#include <cmath>

#include "common/arithmetic/instruction_set.h"

namespace starring {
namespace {

struct Search {
  std::span<const float> values;
  bool* found;
};

// All exponent bits set: NaN or infinity. Integers, so that the loop vectorises without a promise about NaN.
[[gnu::always_inline]] inline void AnyNonFinite(const Search& search) {
  constexpr uint32_t kExponent = 0x7f800000u;
  uint32_t found = 0;
  for (const float value : search.values) {
    found |= (std::bit_cast<uint32_t>(value) & kExponent) == kExponent ? 1u : 0u;
  }
  *search.found = found != 0;
}

STARRING_DEFINE_CLONES(kAnyNonFinite, AnyNonFinite, Search);

}  // namespace

std::optional<int64_t> FindNonFinite(std::span<const float> values) {
  bool found = false;
  kAnyNonFinite[static_cast<int>(BestInstructionSet())]({.values = values, .found = &found});
  if (!found) return std::nullopt;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) return static_cast<int64_t>(i);
  }
  return std::nullopt;
}

}  // namespace starring
