// Temporary memory that the operations of one device share: they run one after another, so each may use all of it.
#ifndef STARRING_KERNELS_CPU_SCRATCH_H_
#define STARRING_KERNELS_CPU_SCRATCH_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/aligned_memory.h"

namespace starring {

// Thread safety: one thread.
class Scratch {
 public:
  // For an operation's Create: from now on at least `size_bytes` are there. Moves the memory: ask for data() anew in
  // every run.
  void Reserve(int64_t size_bytes) {
    if (size_bytes > memory_.size_bytes()) memory_ = AlignedMemory(size_bytes);
  }
  std::byte* data() { return memory_.data(); }

 private:
  AlignedMemory memory_;
};

}  // namespace starring

#endif  // STARRING_KERNELS_CPU_SCRATCH_H_
