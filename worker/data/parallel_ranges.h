// A loop over an OpenMP team.
#ifndef STARRING_WORKER_DATA_PARALLEL_RANGES_H_
#define STARRING_WORKER_DATA_PARALLEL_RANGES_H_

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace starring {

// Cuts [0, count) in `threads` contiguous parts and calls body(part, begin, end) for each that is not empty, each on a
// thread of its own, the caller among them. Returns when all calls have. With one thread, or one part, nothing but the
// call happens. What the caller wrote before is seen by the bodies, what they wrote is seen by the caller.
// REQUIRES: threads >= 1; `body` does not throw.
void ParallelRanges(int threads, int64_t count, absl::FunctionRef<void(int part, int64_t begin, int64_t end)> body);

}  // namespace starring

#endif  // STARRING_WORKER_DATA_PARALLEL_RANGES_H_
