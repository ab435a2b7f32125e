#include "worker/model/memory_plan.h"

#include <algorithm>
#include <numeric>

#include "common/check.h"

namespace starring {
namespace {

bool LiveTogether(const BufferLife& a, const BufferLife& b) { return a.first <= b.last && b.first <= a.last; }

int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

MemoryPlan PlanMemory(std::span<const BufferLife> buffers, int64_t alignment) {
  CHECK_GE(alignment, 1);
  std::vector<int> by_size(buffers.size());
  std::iota(by_size.begin(), by_size.end(), 0);
  std::stable_sort(by_size.begin(), by_size.end(), [&](int a, int b) { return buffers[a].size > buffers[b].size; });

  MemoryPlan plan;
  plan.offsets.assign(buffers.size(), 0);
  std::vector<int> placed;  // ascending by offset
  for (const int b : by_size) {
    CHECK_GE(buffers[b].size, 0);
    CHECK_LE(buffers[b].first, buffers[b].last);
    const int64_t size = RoundUp(buffers[b].size, alignment);
    int64_t offset = 0;
    for (const int other : placed) {
      if (!LiveTogether(buffers[b], buffers[other])) continue;
      if (plan.offsets[other] >= offset + size) break;  // the gap below `other` is large enough
      offset = std::max(offset, plan.offsets[other] + RoundUp(buffers[other].size, alignment));
    }
    plan.offsets[b] = offset;
    plan.size = std::max(plan.size, offset + size);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), b,
                                   [&](int x, int y) { return plan.offsets[x] < plan.offsets[y]; }),
                  b);
  }
  return plan;
}

}  // namespace starring
