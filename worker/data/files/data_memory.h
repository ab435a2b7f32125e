// Whether a data set fits into memory, asked before memory is taken: a process that takes more than its control group
// grants is killed without a word.
//
// Thread safety: any thread.
#ifndef STARRING_WORKER_DATA_FILES_DATA_MEMORY_H_
#define STARRING_WORKER_DATA_FILES_DATA_MEMORY_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace starring {

// ResourceExhausted, with both sizes, if this process may not take `bytes` more for the content of `path`: by the
// memory of the machine and of its control groups (common/host/machine_limits.h), and by its own limit (ulimit -v).
// `root` is as of AvailableMemoryBytes.
absl::Status CheckDataFits(const std::string& path, int64_t bytes, const std::string& root = "");

}  // namespace starring

#endif  // STARRING_WORKER_DATA_FILES_DATA_MEMORY_H_
