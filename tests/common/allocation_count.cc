#include "tests/common/allocation_count.h"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace {
thread_local int64_t allocation_count = 0;

void* Allocate(size_t size, size_t alignment) {
  ++allocation_count;
  size = (size + alignment) / alignment *
         alignment;  // above 0, and a multiple of the alignment, as aligned_alloc requires
  void* memory = std::aligned_alloc(alignment, size);
  if (memory == nullptr) std::abort();
  return memory;
}
}  // namespace

void* operator new(size_t size) { return Allocate(size, alignof(std::max_align_t)); }
void* operator new(size_t size, std::align_val_t alignment) { return Allocate(size, static_cast<size_t>(alignment)); }
// std::stable_sort asks this way, and AddressSanitizer has one of its own unless it is here.
void* operator new(size_t size, const std::nothrow_t&) noexcept { return Allocate(size, alignof(std::max_align_t)); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace starring {

int64_t AllocationCount() { return allocation_count; }

}  // namespace starring
