// Writes a file so that a reader, or a crash at any moment, meets the old content or the whole of the new one.
//
// Thread safety: AtomicFile belongs to one thread.
#ifndef STARRING_COMMON_ATOMIC_FILE_H_
#define STARRING_COMMON_ATOMIC_FILE_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace starring {

// A file that is written piece by piece next to its place. Without Commit nothing is left of it.
class AtomicFile {
 public:
  // The temporary name is of this process alone: what another left under it is removed, a link is not followed.
  static absl::StatusOr<std::unique_ptr<AtomicFile>> Create(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  absl::Status Append(std::span<const std::byte> bytes);
  // Flushes to the disk and renames to the path. Once, at the end.
  absl::Status Commit();

 private:
  AtomicFile(std::string path, std::string temporary, int file);

  const std::string path_;
  const std::string temporary_;
  int file_;  // -1 after Commit
};

// Writes `content` to a file beside `path`, flushes it to the disk and renames it to `path`. On an error
// (ResourceExhausted when the disk is full, else Unavailable or NotFound, each with the path and the system's text)
// `path` is as it was and nothing is left beside it.
//
// A link is followed. What exists and is no regular file (a terminal, a pipe), and a link in /dev or /proc, is written
// to straight, at its end: a rename would put a file in the place of /dev/stdout.
absl::Status WriteFileAtomically(const std::string& path, absl::string_view content);

}  // namespace starring

#endif  // STARRING_COMMON_ATOMIC_FILE_H_
