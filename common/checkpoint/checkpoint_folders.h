// The folders of checkpoints inside one directory: which there are, adding one so that it is there whole or not at all,
// and removing old ones. Knows nothing of what is in them.
//
//   DIR/step-000000123             complete
//   DIR/.writing-step-000000123    half written, or what a crash left; the next PublishFolder removes it
//   DIR/.lock                      locked by the process that publishes
//   DIR/.replaced-step-000000123   complete, while another of the same step takes its place; after a crash in between
//                                  it still counts
//
// One process at a time publishes in a directory, which FolderLock sees to; any number may list and read.
#ifndef STARRING_COMMON_CHECKPOINT_CHECKPOINT_FOLDERS_H_
#define STARRING_COMMON_CHECKPOINT_CHECKPOINT_FOLDERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace starring {

struct CheckpointFolder {
  int64_t step = 0;
  std::string path;
};

// Keeps other jobs from publishing in a directory while it lives; it ends with the process, however that ends.
class FolderLock {
 public:
  // Makes `dir` if it is not there. FailedPrecondition when another process still has the lock after `patience`.
  static absl::StatusOr<FolderLock> Take(const std::string& dir, absl::Duration patience);
  ~FolderLock();
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&&) = delete;

 private:
  explicit FolderLock(int file) : file_(file) {}
  int file_;
};

// Newest first; empty if `dir` does not exist.
std::vector<CheckpointFolder> ListCheckpointFolders(const std::string& dir);

// Calls `fill` with the path of an empty folder; when it has written files there, each flushed to the disk, the folder
// becomes DIR/step-..., in place of one of the same step. On an error, fill's or the system's, `dir` has the complete
// folders that it had before and nothing else.
absl::Status PublishFolder(const std::string& dir, int64_t step,
                           absl::FunctionRef<absl::Status(const std::string& folder)> fill);

// Removes all but the newest `kept` of the folders up to `newest_step`, the one just published. Later ones stay: they
// are damaged ones that a resumed run passed over, and must not push out what is whole. REQUIRES: kept >= 1.
void RemoveOldFolders(const std::string& dir, int64_t newest_step, int kept);

}  // namespace starring

#endif  // STARRING_COMMON_CHECKPOINT_CHECKPOINT_FOLDERS_H_
