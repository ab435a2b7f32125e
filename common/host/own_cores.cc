#include "common/host/own_cores.h"

#include <errno.h>
#include <sched.h>

namespace starring {
namespace {

constexpr int kSetsMax = 64;  // 65,536 cores; Linux counts at most 8,192 on x86-64

}  // namespace

std::vector<int> OwnCores() {
  // A cpu_set_t has room for 1,024 cores. On a machine whose kernel counts more the call fails with EINVAL, and does
  // not say how much room it wants. So the room is doubled until the call succeeds.
  for (int set_count = 1; set_count <= kSetsMax; set_count *= 2) {
    std::vector<cpu_set_t> sets(set_count);
    const size_t size_bytes = sets.size() * sizeof(cpu_set_t);
    if (sched_getaffinity(0, size_bytes, sets.data()) != 0) {
      if (errno == EINVAL) continue;
      return {};
    }
    std::vector<int> cores;
    for (int core = 0; core < set_count * CPU_SETSIZE; ++core) {
      if (CPU_ISSET_S(core, size_bytes, sets.data())) cores.push_back(core);
    }
    return cores;
  }
  return {};
}

}  // namespace starring
