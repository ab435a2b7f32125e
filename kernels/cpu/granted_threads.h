// Whether OpenMP gives a parallel region the threads that it asks for: their number decides bits.
//
// Thread safety: any thread may call; what it sets holds for the calling thread.
#ifndef STARRING_KERNELS_CPU_GRANTED_THREADS_H_
#define STARRING_KERNELS_CPU_GRANTED_THREADS_H_

#include "absl/status/status.h"

namespace starring {

// From now on regions of the calling thread have as many threads as they ask for, whatever OMP_DYNAMIC and
// OMP_MAX_ACTIVE_LEVELS say. InvalidArgument, naming the variable, if OpenMP does not grant `threads` all the same.
absl::Status GrantThreads(int threads);

}  // namespace starring

#endif  // STARRING_KERNELS_CPU_GRANTED_THREADS_H_
