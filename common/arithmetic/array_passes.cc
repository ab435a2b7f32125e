#include "common/arithmetic/array_passes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

#include "common/arithmetic/instruction_set.h"
#include "common/base/check.h"
#include "common/base/memory.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace starring {
namespace {

struct Search {
  std::span<const float> values;
  bool* found;
};

// A float with all exponent bits set is NaN or an infinity. The loop compares integers, because a comparison of floats
// that must honour NaN does not vectorise as well; and it never stops early, because a loop with an exit does not
// vectorise at all.
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

void StreamCopy(std::span<const float> from, std::span<float> to) {
  CHECK_EQ(from.size(), to.size());
  size_t i = 0;
#ifdef __SSE2__
  constexpr size_t kLineBytes = kCacheLineBytes, kLineElements = kLineBytes / sizeof(float);
  // Only whole lines are streamed: for a part of a line the processor would first read the rest of it from memory.
  const size_t misalignment = reinterpret_cast<uintptr_t>(to.data()) % kLineBytes;
  const size_t head = misalignment == 0 ? 0 : (kLineBytes - misalignment) / sizeof(float);
  for (; i < std::min(head, from.size()); ++i) to[i] = from[i];
  for (; i + kLineElements <= from.size(); i += kLineElements) {
    for (size_t part = i; part < i + kLineElements; part += 4) _mm_stream_ps(&to[part], _mm_loadu_ps(&from[part]));
  }
  // Streaming stores are ordered with no other store: without the fence another thread could see a flag that is set
  // after this copy, and then old data.
  _mm_sfence();
#endif
  for (; i < from.size(); ++i) to[i] = from[i];
}

std::optional<int64_t> FindNonFinite(std::span<const float> values) {
  // A vectorised pass says whether there is such a value. Only then a slow one looks for its place.
  bool found = false;
  kAnyNonFinite[static_cast<int>(BestInstructionSet())]({.values = values, .found = &found});
  if (!found) return std::nullopt;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) return static_cast<int64_t>(i);
  }
  return std::nullopt;
}

}  // namespace starring
