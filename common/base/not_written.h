// The error of a run that has trained to its end, or to the step of a stop, and whose result is not on the disk.
#ifndef STARRING_COMMON_BASE_NOT_WRITTEN_H_
#define STARRING_COMMON_BASE_NOT_WRITTEN_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace starring {

// `message` says what was not written, why, and what is there. ExitCode gives it a number of its own.
absl::Status NotWrittenError(absl::string_view message);

// OK stays OK; any other status becomes such an error, of `what`: "the trace", "the predictions".
absl::Status NotWritten(const absl::Status& status, absl::string_view what);

// True for such an error, also after Annotate.
[[nodiscard]] bool IsNotWritten(const absl::Status& status);

}  // namespace starring

#endif  // STARRING_COMMON_BASE_NOT_WRITTEN_H_
