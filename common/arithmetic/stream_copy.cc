#include "common/arithmetic/stream_copy.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "common/check.h"
#include "common/memory.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace starring {

void StreamCopy(std::span<const float> from, std::span<float> to) {
  CHECK_EQ(from.size(), to.size());
  size_t i = 0;
#ifdef __SSE2__
  constexpr size_t kLineBytes = kCacheLineBytes, kLineElements = kLineBytes / sizeof(float);
  // Whole lines only: the rest of a line would be read back.
  const size_t misalignment = reinterpret_cast<uintptr_t>(to.data()) % kLineBytes;
  const size_t head = misalignment == 0 ? 0 : (kLineBytes - misalignment) / sizeof(float);
  for (; i < std::min(head, from.size()); ++i) to[i] = from[i];
  for (; i + kLineElements <= from.size(); i += kLineElements) {
    for (size_t part = i; part < i + kLineElements; part += 4) _mm_stream_ps(&to[part], _mm_loadu_ps(&from[part]));
  }
  _mm_sfence();  // these stores are ordered with nothing else
#endif
  for (; i < from.size(); ++i) to[i] = from[i];
}

}  // namespace starring
