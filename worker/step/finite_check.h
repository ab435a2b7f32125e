// Whether what a run has learned is numbers.
#ifndef STARRING_WORKER_STEP_FINITE_CHECK_H_
#define STARRING_WORKER_STEP_FINITE_CHECK_H_

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "common/layout.h"

namespace starring {

// Every worker's gradient is finite, or the step is refused; but their sum, and what the optimizer makes of it, need
// not be. Internal naming the tensor (and `suffix`, for an optimizer's vector) and the last of `step_count` steps, if
// `vector`, as long as the parameter vector, has an infinity or NaN.
absl::Status CheckFinite(const Layout& layout, int64_t step_count, std::span<const float> vector,
                         const std::string& suffix = "");

}  // namespace starring

#endif  // STARRING_WORKER_STEP_FINITE_CHECK_H_
