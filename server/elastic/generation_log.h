// The coordinator's log: which generations an elastic run has had. Only the log counts: a generation begins when its
// `commit` is on the disk. A coordinator that starts again reads here how far its predecessor came.
//
// The file is generations.log in the coordinator's --state_dir, in the format of record_file.h. Its records are
// GenerationLogEntry (proto/starring/v1/elastic_state.proto), each flushed to the disk. `server --print_log` prints one
// a line:
//
//   run { name: "digits" leaves: 8 shards: 2 job: "SHA256" first_step: 0 parts { name: "flags" digest: "..." } ... }
//   prepare: 3
//   commit { counted { generation: 2 from: 100 to: 240 shards: [1120, 1120] } generation: 3 first_step: 240
//            snapshot_every: 10 workers: [ID, ID] leaf_owners: [0, 0, 0, 0, 1, 1, 1, 1] }
//   end { counted { generation: 3 from: 240 to: 1000 shards: [6080, 6080] } step: 1000 }
//
// It is the proof that every leaf of every step counted once: the steps that counted, cut off where the next generation
// begins, cover [first, end) without gap or overlap; in each generation each of the M leaves has one worker; and each
// shard has counted M leaves a step in its own sums. CheckExactlyOnce checks this.
//
// A record that was cut off by a crash is the last one: it is removed when the log is opened. Any other damage is an
// error, also a log that proves nothing any more: its run could not be ended. The log of another version is refused.
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
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/checkpoint/checkpoint.h"
#include "common/job/generation.h"

namespace starring {

// The history that the records of a log tell, up to one of them.
struct RunHistory {
  int leaves = 0;  // 0: not even what the run is
  int64_t first_step = 0;
  // The highest number of a generation; 0: none. The next generation needs a higher number, because members of that
  // generation may still run.
  int64_t last_number = 0;
  std::optional<Generation> last;  // that was committed
  int64_t counted_end = 0;         // all steps below this one have counted, and those from it on have not
  bool has_ended = false;
};

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
    };
    std::vector<Part> parts = {};
  };

  // Which run the log in `folder` is of, and how far that has come. kNone: no generation has begun, or the log cannot
  // be read to its end. Takes no lock.
  enum class Progress { kNone, kBegun, kEnded };
  struct Glimpse {
    std::string name;  // empty: there is no log, or its first record cannot be read
    Progress progress = Progress::kNone;
  };
  static Glimpse Peek(const std::string& folder);
  // Servers that are started with this name go on with its run. Empty if the run has ended, or there is none.
  static std::string UnfinishedRun(const std::string& folder);
  // Calls `print` for each record of the log in `folder`, as far as it can be read. Then the same errors as of
  // CheckExactlyOnce, and NotFound if there is no log. Takes no lock.
  static absl::Status Print(const std::string& folder, absl::FunctionRef<void(const std::string&)> print);

  // The kernel may need a moment to release the lock of a coordinator that was killed.
  static constexpr absl::Duration kLockPatience = absl::Seconds(2);
  // Creates `folder`, and keeps other coordinators from it before the run is known. FailedPrecondition if one has it
  // still after `patience`.
  static absl::StatusOr<FolderLock> Lock(const std::string& folder, absl::Duration patience);

  // Creates `folder` and the log, or reads what is there. `held` is the lock of the folder, and outlives the log.
  // Without it the log takes the lock itself. FailedPrecondition if another process has the log open, it is another
  // run's, or the run has ended; InvalidArgument if it is of another version; DataLoss, naming file and place, if it is
  // damaged.
  static absl::StatusOr<std::unique_ptr<GenerationLog>> Open(const std::string& folder, const Run& run,
                                                             const FolderLock* held = nullptr);
  ~GenerationLog();
  GenerationLog(const GenerationLog&) = delete;
  GenerationLog& operator=(const GenerationLog&) = delete;

  int64_t first_step() const { return history_.first_step; }
  int64_t last_number() const { return history_.last_number; }
  const std::optional<Generation>& last() const { return history_.last; }
  int64_t counted_end() const { return history_.counted_end; }
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
  // more, the run goes back there. `counts`: of the previous generation.
  absl::Status Commit(const Generation& generation, int64_t reached = 0, const Counts& counts = {});
  // The same, and DataLoss if the log does not prove that all steps counted once.
  absl::Status End(int64_t step, const Counts& counts = {});

 private:
  GenerationLog(std::optional<FolderLock> lock, bool is_locked, std::string path, int file)
      : lock_(std::move(lock)), is_locked_(is_locked), path_(std::move(path)), file_(file) {}
  // Writes `bytes` to the disk, or nothing.
  absl::Status Write(absl::string_view bytes);

  const std::optional<FolderLock> lock_;  // unless the caller has it
  const bool is_locked_;
  const std::string path_;
  const int file_;
  int64_t size_ = 0;  // of the file, as this process has left it
  RunHistory history_;
};

// Proves from the bytes of a log that the leaves of each step counted exactly once. DataLoss, with the place of the
// record, if they did not: a leaf without a worker, a shard that counted otherwise, a generation that was over or never
// committed, steps that overlap or are left out. The log of a run that goes on may be checked, too. InvalidArgument if
// it is of another version.
absl::Status CheckExactlyOnce(absl::string_view log);

}  // namespace starring

#endif  // STARRING_SERVER_ELASTIC_GENERATION_LOG_H_
