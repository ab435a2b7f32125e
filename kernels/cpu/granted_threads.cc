#include "kernels/cpu/granted_threads.h"

#include <omp.h>

#include "absl/strings/str_cat.h"

namespace starring {

absl::Status GrantThreads(int threads) {
  // With OMP_DYNAMIC the number follows the load of the machine.
  omp_set_dynamic(0);
  if (omp_get_max_active_levels() < 1) omp_set_max_active_levels(1);
  int granted = 1;
#pragma omp parallel num_threads(threads)
  {
#pragma omp single
    granted = omp_get_num_threads();
  }
  if (granted == threads) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "OpenMP grants ", granted, granted == 1 ? " thread" : " threads",
      // The limit cannot be raised once the process runs.
      omp_get_thread_limit() < threads ? absl::StrCat(", because OMP_THREAD_LIMIT is ", omp_get_thread_limit()) : "",
      ": their number is part of what decides the bits: unset OMP_THREAD_LIMIT, or ask for ", granted));
}

}  // namespace starring
