#include "worker/data/parallel_ranges.h"

#include <algorithm>
#include <atomic>

namespace starring {
namespace {

struct Team {
  int64_t count;
  int parts;
  absl::FunctionRef<void(int part, int64_t begin, int64_t end)> body;
  // libgomp synchronises a team by futexes of its own that ThreadSanitizer cannot see, so fork and join are said once
  // more in C++: the caller's release of `fork` is acquired by every part, the parts' releases of `join` by the caller.
  std::atomic<int> fork{0};
  std::atomic<int> join{0};
};

// Not inlined: Fork is hidden from ThreadSanitizer, this is not.
__attribute__((noinline)) void RunPart(Team& team, int part) {
  team.fork.load(std::memory_order_acquire);
  team.body(part, team.count * part / team.parts, team.count * (part + 1) / team.parts);
  team.join.fetch_add(1, std::memory_order_release);
}

// The compiler hands `team` to the threads through a struct on the caller's stack: the one access that comes before
// `fork` can be acquired. A team may turn out smaller than asked for (OMP_THREAD_LIMIT), hence the loop.
__attribute__((noinline, no_sanitize_thread)) void Fork(Team& team) {
#pragma omp parallel for schedule(static, 1) num_threads(team.parts)
  for (int part = 0; part < team.parts; ++part) RunPart(team, part);
}

}  // namespace

void ParallelRanges(int threads, int64_t count, absl::FunctionRef<void(int part, int64_t begin, int64_t end)> body) {
  const int parts = static_cast<int>(std::min<int64_t>(threads, count));
  if (parts < 1) return;
  if (parts == 1) return body(0, 0, count);
  Team team{.count = count, .parts = parts, .body = body};
  team.fork.store(1, std::memory_order_release);
  Fork(team);
  team.join.load(std::memory_order_acquire);
}

}  // namespace starring
