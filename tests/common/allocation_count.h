// How often this thread has called operator new: link it to test that a call allocates nothing.
#ifndef STARRING_TESTS_COMMON_ALLOCATION_COUNT_H_
#define STARRING_TESTS_COMMON_ALLOCATION_COUNT_H_

#include <cstdint>

namespace starring {

int64_t AllocationCount();

}  // namespace starring

#endif  // STARRING_TESTS_COMMON_ALLOCATION_COUNT_H_
