// The state that the operations of one CPU device share: its settings, its temporary memory, and how work is cut into
// shares for OpenMP's threads. Operations point to the context, so a device outlives its operations.
//
// A target that includes this is compiled with -fopenmp.
#ifndef STARRING_KERNELS_CPU_CPU_CONTEXT_H_
#define STARRING_KERNELS_CPU_CPU_CONTEXT_H_

#include <omp.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/arithmetic/instruction_set.h"
#include "common/base/memory.h"
#include "dnnl.hpp"

namespace starring {

// Temporary memory. Operations run one after another, so each may use all of it.
//
// Thread safety: one thread.
class Scratch {
 public:
  // For the factory of an operation: from now on there are at least `size_bytes`. This may move the memory, so an
  // operation asks for data() anew in every run. ResourceExhausted if the system has no memory left; then operations
  // that were made before keep theirs.
  absl::Status Reserve(int64_t size_bytes) {
    if (size_bytes <= memory_.size_bytes()) return absl::OkStatus();
    AlignedMemory memory(size_bytes);
    if (memory.data() == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat("no memory for ", size_bytes, " bytes"));
    }
    memory_ = std::move(memory);
    return absl::OkStatus();
  }
  std::byte* data() { return memory_.data(); }

 private:
  AlignedMemory memory_;
};

struct CpuContext {
  int threads = 1;
  InstructionSet instruction_set = BestInstructionSet();  // of our own loops; oneDNN has its own limit
  Scratch scratch;
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
};

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
// (the last may be shorter); empty ranges are left out. Each range has its own thread; a single one has the caller's.
//
// The ranges depend on the arguments alone, never on how many threads the system grants: an element is always summed
// into the same share, so the bits are the same.
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
    // With fewer threads than shares, a thread takes several shares.
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

#endif  // STARRING_KERNELS_CPU_CPU_CONTEXT_H_
