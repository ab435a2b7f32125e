// Replaces a file in one step: a reader, or a crash at any moment, finds either the old content or all of the new one.
//
// Thread safety: AtomicFile belongs to one thread.
#ifndef STARRING_COMMON_BASE_ATOMIC_FILE_H_
#define STARRING_COMMON_BASE_ATOMIC_FILE_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace starring {

// "HOST.PROCESS" of this process, for the name of a file that is not finished. The number of the process alone would be
// equal in all containers, which may share a folder: the first process of each has the number 1.
std::string ProcessMark();

// A file that is written piece by piece under a temporary name in the same folder. Without Commit nothing of it
// remains.
class AtomicFile {
 public:
  // The temporary name contains ProcessMark(). A file that an earlier process left under that name is removed; a
  // link there is not followed. Folders of the path that do not exist are made.
  static absl::StatusOr<std::unique_ptr<AtomicFile>> Create(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  absl::Status Append(std::span<const std::byte> bytes);
  // Flushes to the disk and renames to the path. Called once, at the end.
  absl::Status Commit();

 private:
  AtomicFile(std::string path, std::string temporary, int file);

  const std::string path_;
  const std::string temporary_;
  int file_;  // -1 after Commit
};

// Writes `content` by way of an AtomicFile. On an error (ResourceExhausted when the disk is full, else Unavailable or
// NotFound, each with the path and the system's text) `path` is as it was and no temporary file remains.
//
// A link is followed. If `path` exists and is no regular file (a terminal, a pipe), or is a link in /dev or /proc, then
// `content` is appended to it directly: a rename would replace /dev/stdout by a file.
absl::Status WriteFileAtomically(const std::string& path, absl::string_view content);

// Whether WriteFileAtomically could write there now: errors as it gives. Makes and changes nothing that stays, but
// folders of the path.
absl::Status CheckFileWritable(const std::string& path);

}  // namespace starring

#endif  // STARRING_COMMON_BASE_ATOMIC_FILE_H_
