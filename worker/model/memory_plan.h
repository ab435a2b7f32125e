// Places buffers of known lifetimes in one arena so that no two that live at the same time overlap.
//
// Greedy by size: the largest buffer first, each at the lowest offset that is free for the whole of its life. See
// Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020, section 5.2. O(n^2) for n
// buffers; never more than the sum of all sizes, never less than the largest sum that lives at one time.
#ifndef STARRING_WORKER_MODEL_MEMORY_PLAN_H_
#define STARRING_WORKER_MODEL_MEMORY_PLAN_H_

#include <cstdint>
#include <span>
#include <vector>

namespace starring {

// A buffer is used at times first, ..., last, ends included.
struct BufferLife {
  int64_t size = 0;
  int first = 0;
  int last = 0;
};

struct MemoryPlan {
  std::vector<int64_t> offsets;  // of each buffer, multiples of the alignment
  int64_t size = 0;              // of the arena, a multiple of the alignment
};

// REQUIRES: sizes >= 0, first <= last, alignment >= 1.
MemoryPlan PlanMemory(std::span<const BufferLife> buffers, int64_t alignment);

}  // namespace starring

#endif  // STARRING_WORKER_MODEL_MEMORY_PLAN_H_
