// Writes a file so that a reader, or a crash at any moment, meets the old content or the whole of the new one.
#ifndef STARRING_COMMON_ATOMIC_FILE_H_
#define STARRING_COMMON_ATOMIC_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace starring {

// Writes `content` to a file beside `path`, flushes it to the disk and renames it to `path`. On an error
// (ResourceExhausted when the disk is full, else Unavailable or NotFound, each with the path and the system's text)
// `path` is as it was and nothing is left beside it.
absl::Status WriteFileAtomically(const std::string& path, absl::string_view content);

}  // namespace starring

#endif  // STARRING_COMMON_ATOMIC_FILE_H_
