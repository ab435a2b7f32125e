// The snapshots of one shard of an elastic run. The snapshot of step s is every slice that the shard owns, with the
// optimizer's state, as the update of step s - 1 left it. A generation begins with a snapshot that all shards have.
//
// A snapshot is taken bucket by bucket, each in the call that seals update s - 1, so that training does not stand still
// and no shard waits for another one. On shard 0 it also has values that no shard computes: worker 0 sends them for the
// steps before s (SetSideValues).
//
// Snapshots are in memory, where they survive a worker. With a folder, each is also in a file, which survives the
// process. The page cache outlives the process, so files are not flushed to the disk unless `flush` is set. A failed
// write loses durability only: the snapshot stays in memory, and the log says it once per outage.
//
// The store keeps the newest snapshot that all shards have durably (DropBefore), and all later ones. At most the newest
// kInMemoryMax are in memory, and at most kFilesMax in files. If snapshots come faster than the disk writes, some get
// no file (write_choice.h).
//
// A lock gives one process at a time the files of a shard's number in a folder.
//
// Thread safety: one thread makes all calls; the object has a thread of its own, which writes.
#ifndef STARRING_SERVER_ELASTIC_SNAPSHOT_STORE_H_
#define STARRING_SERVER_ELASTIC_SNAPSHOT_STORE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/memory.h"
#include "common/base/mutex.h"
#include "common/checkpoint/checkpoint.h"
#include "server/elastic/write_choice.h"

namespace starring {

// Immutable when it is complete.
struct Snapshot {
  int64_t step = 0;
  // Parameters, then each state vector; in each the shard's slices, bucket after bucket.
  std::vector<AlignedFloats> arrays;
  std::vector<double> side_values;
};

class SnapshotStore {
 public:
  static constexpr int kInMemoryMax = 3;
  // Snapshots that are being taken: a bucket may be ahead of another, and side values come later. Memory that is kept
  // for the next ones counts, too.
  static constexpr int kBuildingMax = 2;
  // Snapshots that take memory at a time: those of the two limits above, and three that may be older. One is being
  // written, and one waits to be written. From the third a checkpoint is read, or a generation begins with it.
  static constexpr int kAliveMax = kInMemoryMax + kBuildingMax + 3;
  // Only if another shard does not write, or writes much more slowly, would there be more files. Then the oldest, the
  // newest and some between them stay (ThinOut).
  static constexpr int kFilesMax = 16;

  struct Options {
    std::string folder;  // empty: in memory alone. Created if it is missing; shards of one run may share it
    int shard = 0;
    int shard_count = 1;
    // A word that identifies the job: run, model, data, flags. Files of another job are left alone.
    std::string job;
    std::vector<int64_t> slice_elements;  // by bucket
    int vector_count = 0;                 // state vectors
    bool has_side_values = false;
    bool flush = false;                           // files survive the machine, too
    std::function<void(const std::string&)> log;  // lines for people; called by the thread that makes the calls
  };
  // How long a process that was killed may take to release the lock.
  static constexpr absl::Duration kLockPatience = absl::Seconds(2);
  // Finds the files of earlier processes. Errors of the folder, with the path; FailedPrecondition if another process
  // has the shard's files; InvalidArgument if another version has written one of them.
  static absl::StatusOr<std::unique_ptr<SnapshotStore>> Open(Options options);
  // Waits for the file that is being written.
  ~SnapshotStore();

  // Copies a slice into the snapshot of `step`: parameters, then each state vector, as long as the slice. The steps of
  // a bucket ascend from call to call, and so do those of SetSideValues. Empty slices need not be taken. No effect if a
  // later snapshot is complete, or if kBuildingMax later ones are being taken.
  void Take(int64_t step, int bucket, std::span<const std::span<const float>> slices);
  // REQUIRES: has_side_values.
  void SetSideValues(int64_t step, std::vector<double> values);

  // The steps whose snapshots are complete, ascending.
  std::vector<int64_t> held() const;
  // The held steps whose snapshots survive this process; in a store without a folder all of them. Call it often: it
  // unlinks surplus files.
  std::vector<int64_t> durable();

  // The memory of all snapshots now, without those that only callers hold. The snapshot that was last read from a file
  // counts.
  int64_t bytes_in_memory() const;

  // A snapshot that is only in a file is read, and is in memory while the caller holds it. NotFound if there is no such
  // snapshot. DataLoss if its file is damaged; the snapshot is then no longer held.
  absl::StatusOr<std::shared_ptr<const Snapshot>> Get(int64_t step);

  // All shards have the snapshot of `step` durably.
  void DropBefore(int64_t step);
  // A generation begins at `step`, and all shards have the snapshot of that step. It is written if it was not. Later
  // snapshots will be taken again.
  void DropAfter(int64_t step);

 private:
  struct Building {
    std::shared_ptr<Snapshot> snapshot;
    std::set<int> missing;  // buckets whose slices have not come
    bool side_values_missing = false;
  };

  explicit SnapshotStore(Options options);
  absl::Status FindFiles();
  // Whether a snapshot of `step` cannot become complete, because it or a later one is.
  bool IsPast(int64_t step) const;
  // Null if there is no place for it.
  Building* BuildingOf(int64_t step);
  void FinishIfComplete(int64_t step);
  std::string PathOf(int64_t step) const;
  void WriteInBackground();
  absl::Status WriteFile(const Snapshot& snapshot) const;
  absl::StatusOr<std::shared_ptr<const Snapshot>> ReadFile(int64_t step) const;
  // Takes the oldest snapshot out of memory.
  void ForgetOldest();
  // Keeps the memory of a snapshot that is not read any more.
  void Recycle(std::shared_ptr<const Snapshot> snapshot);
  // Takes the results of the writing thread.
  void TakeWritten();
  void ThinOut();

  const Options options_;
  std::optional<FolderLock> lock_;
  std::vector<int64_t> offsets_;  // by bucket, in every array
  int64_t element_count_ = 0;
  std::set<int> buckets_;  // with a slice of an element or more
  std::map<int64_t, Building> building_;
  std::map<int64_t, std::shared_ptr<const Snapshot>> in_memory_;
  std::set<int64_t> in_files_;
  std::weak_ptr<const Snapshot> read_;            // the last one that was read from a file; the callers hold it
  std::vector<std::shared_ptr<Snapshot>> spare_;  // memory that is taken again, so that its pages are there
  int64_t keep_from_ = 0;
  bool told_failure_ = false;
  WriteChoice choice_;

  mutable Mutex mutex_;
  ConditionVariable changed_;
  std::shared_ptr<const Snapshot> to_write_ ABSL_GUARDED_BY(mutex_);  // null: none waits
  std::shared_ptr<const Snapshot> writing_ ABSL_GUARDED_BY(mutex_);   // null: none is being written
  bool is_void_ ABSL_GUARDED_BY(mutex_) = false;                      // writing_ is of a step that was undone meanwhile
  std::vector<int64_t> written_ ABSL_GUARDED_BY(mutex_);
  absl::Status write_failure_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread writer_;  // last: it uses the members above
};

}  // namespace starring

#endif  // STARRING_SERVER_ELASTIC_SNAPSHOT_STORE_H_
