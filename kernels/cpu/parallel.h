// Loops over OpenMP threads, cut the same way on every run: element e is computed by the same share whatever the number
// of threads that the system really grants.
//
// A target that includes this is compiled with -fopenmp.
#ifndef STARRING_KERNELS_CPU_PARALLEL_H_
#define STARRING_KERNELS_CPU_PARALLEL_H_

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace starring {

// While it lives, OpenMP regions that the calling thread starts, those of oneDNN included, have `threads` threads.
class ThreadCountScope {
 public:
  explicit ThreadCountScope(int threads) : before_(omp_get_max_threads()), changed_(before_ != threads) {
    if (changed_) omp_set_num_threads(threads);
  }
  ~ThreadCountScope() {
    if (changed_) omp_set_num_threads(before_);
  }
  ThreadCountScope(const ThreadCountScope&) = delete;
  ThreadCountScope& operator=(const ThreadCountScope&) = delete;

 private:
  const int before_;
  const bool changed_;
};

// Calls loop(share, begin, end) for `shares` ranges that cover [0, count) in order and are multiples of `grain` long
// (the last may be shorter); empty ones are left out. Each on its own thread; a single one on the caller's.
template <typename Loop>
void ParallelShares(int shares, int64_t count, int64_t grain, const Loop& loop) {
  if (count <= 0) return;
  const int64_t grains = (count + grain - 1) / grain;
  const int used = static_cast<int>(std::min<int64_t>(shares, grains));
  if (used <= 1) {
    loop(0, int64_t{0}, count);
    return;
  }
#pragma omp parallel num_threads(used)
  {
    for (int share = omp_get_thread_num(); share < used; share += omp_get_num_threads()) {
      loop(share, grains * share / used * grain, std::min(count, grains * (share + 1) / used * grain));
    }
  }
}

// The same for a loop(begin, end) that keeps nothing per share.
template <typename Loop>
void ParallelRanges(int shares, int64_t count, int64_t grain, const Loop& loop) {
  ParallelShares(shares, count, grain, [&](int, int64_t begin, int64_t end) { loop(begin, end); });
}

}  // namespace starring

#endif  // STARRING_KERNELS_CPU_PARALLEL_H_
