// The coordinator's log: which generations an elastic run has had. Only the log counts: a generation begins when its
// `commit` is on the disk. A coordinator that starts again reads here how far its predecessor came.
//
// A text file, generations.log in the coordinator's --state_dir, one entry a line, each with the CRC-32C of the line
// before its " crc=":
//
//   run name=digits leaves=8 shards=2 job=SHA256 first=0 flags=... model=... data=... machine=... answer=...
//                                                             what the run is, and where it begins; the first line
//   prepare 3                                                 the shards are asked to leave generations below 3
//   counted 2 from=100 to=240 leaves=0-4:ID,4-8:ID shards=1120,1120
//                                                             what became part of the result of generation 2: by the
//                                                             deal, and how many leaves each shard has counted in its
//                                                             own sums; "-": it was started again since
//   commit 3 first=240 every=10 workers=ID,ID owners=0,0,0,0,1,1,1,1
//   back 200                                                  steps from 200 on count no more: the snapshot of 240 was
//                                                             lost
//   end 1000                                                  all steps are done
//
// The `counted` lines, cut off where `back` says so, are the proof that every leaf of every step counted once: their
// steps must cover [first, end) without gap or overlap, and the leaves of each [0, M), and each shard must have counted
// M leaves a step. CheckExactlyOnce checks this.
//
// A line that was cut off by a crash is the last one and no entry: it is removed when the log is opened. Any other
// damage is an error, also a log that proves nothing any more: its run could not be ended.
//
// Thread safety: one thread. One process: the folder is locked. Where the file system has no locks, each write first
// checks that the log is as this process has left it.
#ifndef STARRING_SERVER_ELASTIC_GENERATION_LOG_H_
#define STARRING_SERVER_ELASTIC_GENERATION_LOG_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/checkpoint/checkpoint.h"
#include "common/job/generation.h"

namespace starring {

class GenerationLog {
 public:
  // Identifies the run. The log of another run is refused.
  struct Run {
    std::string name;  // the run id
    int leaves = 0;
    int shards = 0;
    std::string job;         // SHA-256 of what all processes have agreed on
    int64_t first_step = 0;  // 0, or a checkpoint's. An existing log decides
    // `job` is the digest of all parts. A refusal names the first part that differs, which may be why later ones do.
    struct Part {
      std::string name;  // of its digest in the log
      std::string digest;
      std::string way_out;
      friend bool operator==(const Part&, const Part&) = default;
    };
    std::vector<Part> parts = {};
    friend bool operator==(const Run&, const Run&) = default;
  };

  // How far the run `name` has come, as the log in `folder` says. kNone: no generation has begun, the log is another
  // run's, or it cannot be read. Takes no lock.
  enum class Progress { kNone, kBegun, kEnded };
  static Progress Peek(const std::string& folder, const std::string& name);

  // The kernel may need a moment to release the lock of a coordinator that was killed.
  static constexpr absl::Duration kLockPatience = absl::Seconds(2);
  // Creates `folder`, and keeps other coordinators from it before the run is known. FailedPrecondition if one has it
  // still after `patience`.
  static absl::StatusOr<FolderLock> Lock(const std::string& folder, absl::Duration patience);

  // Creates `folder` and the log, or reads what is there. `held` is the lock of the folder, and outlives the log.
  // Without it the log takes the lock itself. FailedPrecondition if another process has the log open, it is another
  // run's, or the run has ended; DataLoss, naming file and line, if it is damaged.
  static absl::StatusOr<std::unique_ptr<GenerationLog>> Open(const std::string& folder, const Run& run,
                                                             const FolderLock* held = nullptr);
  ~GenerationLog();
  GenerationLog(const GenerationLog&) = delete;
  GenerationLog& operator=(const GenerationLog&) = delete;

  int64_t first_step() const { return first_step_; }
  // The highest generation number in the log; 0: none. The next generation needs a higher number, because members of
  // that generation may still run.
  int64_t last_number() const { return last_number_; }
  // The last generation that was committed.
  const std::optional<Generation>& last() const { return last_; }
  // All steps below this one have counted, and those from it on have not.
  int64_t counted_end() const { return counted_end_; }

  // Whether the folder's lock keeps other coordinators out.
  bool is_locked() const { return is_locked_; }

  // By shard and step: how many leaves the shard had counted in its sums before that step. Empty if the shard was
  // started again.
  using Counts = std::vector<std::map<int64_t, int64_t>>;

  // Each call returns when its entry is on the disk. ResourceExhausted: there is no space, nothing was written, and the
  // call may be tried again. After any other error the coordinator may not go on: FailedPrecondition if another process
  // has written into the log; DataLoss if steps would have to count that no generation of the log has trained.
  absl::Status Prepare(int64_t number);
  // Also writes what the previous generation has contributed up to generation.first_step. If the run had `reached`
  // more, writes that it goes back there. `counts`: of the previous generation.
  absl::Status Commit(const Generation& generation, int64_t reached = 0, const Counts& counts = {});
  // The same, and DataLoss if the log does not prove that all steps counted once.
  absl::Status End(int64_t step, const Counts& counts = {});

 private:
  GenerationLog(std::optional<FolderLock> lock, bool is_locked, std::string path, int file)
      : lock_(std::move(lock)), is_locked_(is_locked), path_(std::move(path)), file_(file) {}
  absl::Status Read(std::string_view text, const Run& run);
  // Writes all entries, or none.
  absl::Status Write(const std::vector<std::string>& entries);
  absl::Status Append(std::string_view text);
  absl::StatusOr<std::string> CountedUpTo(int64_t step, const Counts& counts) const;

  const std::optional<FolderLock> lock_;  // unless the caller has it
  const bool is_locked_;
  const std::string path_;
  const int file_;
  int64_t size_ = 0;  // of the file, as this process has left it
  int64_t first_step_ = 0;
  int64_t last_number_ = 0;
  std::optional<Generation> last_;
  bool last_has_counted_ = false;  // and so is over
  int64_t counted_end_ = 0;
};

// Proves from a log's text that the leaves of each step counted exactly once. DataLoss, with the line, if they did not:
// a leaf that is doubled or missing, a generation that was over, or was never committed, steps that overlap or are left
// out. The log of a run that goes on may be checked, too.
absl::Status CheckExactlyOnce(std::string_view text);

}  // namespace starring

#endif  // STARRING_SERVER_ELASTIC_GENERATION_LOG_H_
