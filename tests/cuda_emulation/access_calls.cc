// The functions that GCC's -fsanitize=thread calls at every access to memory that is not a local variable. Here they
// mark the sectors of device memory that a kernel touches; ThreadSanitizer's own library is not linked.
#include <cstddef>

#include "tests/cuda_emulation/counters.h"

using starring::cuda_emulation::Access;
using starring::cuda_emulation::MarkAccess;

#define STARRING_ACCESS_CALLS(size)                                                                  \
  extern "C" void __tsan_read##size(void* data) { MarkAccess(Access::kRead, data, size); }           \
  extern "C" void __tsan_write##size(void* data) { MarkAccess(Access::kWrite, data, size); }         \
  extern "C" void __tsan_unaligned_read##size(void* data) { MarkAccess(Access::kRead, data, size); } \
  extern "C" void __tsan_unaligned_write##size(void* data) { MarkAccess(Access::kWrite, data, size); }

STARRING_ACCESS_CALLS(1)
STARRING_ACCESS_CALLS(2)
STARRING_ACCESS_CALLS(4)
STARRING_ACCESS_CALLS(8)
STARRING_ACCESS_CALLS(16)

extern "C" void __tsan_read_range(void* data, size_t size_bytes) { MarkAccess(Access::kRead, data, size_bytes); }
extern "C" void __tsan_write_range(void* data, size_t size_bytes) { MarkAccess(Access::kWrite, data, size_bytes); }
extern "C" void __tsan_init() {}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit(void*) {}
extern "C" void __tsan_vptr_update(void**, void*) {}
