#include "common/aligned_allocation.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

namespace starring {

void* AllocateAligned(size_t size_bytes) {
  const size_t unit = size_bytes >= kHugePageBytes ? kHugePageBytes : kCacheLineBytes;
  const size_t rounded = std::max((size_bytes + unit - 1) / unit * unit, unit);
  void* const memory = std::aligned_alloc(unit, rounded);
#if defined(MADV_HUGEPAGE)
  // A hint: where it is refused, small pages do.
  if (memory != nullptr && unit == kHugePageBytes) (void)madvise(memory, rounded, MADV_HUGEPAGE);
#endif
  return memory;
}

}  // namespace starring
