// The snapshots of one shard of an elastic run. The snapshot of step s is every slice that the shard owns, with the
// optimizer's state, as the update of step s - 1 left it. A generation begins with one that all shards have.
//
// A snapshot is taken bucket by bucket, each in the call that seals update s - 1, so that training does not stand still
// and no shard waits for another one. On shard 0 it also has values that no shard computes: what worker 0 tells it of
// the steps before s (SetSideValues).
//
// Where they are. In memory, where they survive a worker. With a folder also in a file each, where they survive the
// process: the page cache outlives it, so files are not flushed to the disk, unless `flush` says so. A file that cannot
// be written costs its durability alone: the log says it once, and the snapshot stays in memory.
//
// What is kept: everything from the newest snapshot on that all shards have durably (DropBefore), but of memory the
// newest kInMemoryMax only. What comes faster than the disk writes is left out there.
//
// Thread safety: one thread makes all calls; the object has a thread of its own, which writes.
#ifndef STARRING_SERVER_ELASTIC_SNAPSHOT_STORE_H_
#define STARRING_SERVER_ELASTIC_SNAPSHOT_STORE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/memory.h"
#include "common/mutex.h"

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

  struct Options {
    std::string folder;  // empty: in memory alone. Created if it is missing; shards of one run may share it
    int shard = 0;
    int shard_count = 1;
    // A word that names what the snapshots are of: run, model, data, flags. Files of another are left alone.
    std::string job;
    std::vector<int64_t> slice_elements;  // by bucket
    int vector_count = 0;                 // state vectors
    bool has_side_values = false;
    bool flush = false;                           // files survive the machine, too
    std::function<void(const std::string&)> log;  // lines for people; called by the thread that makes the calls
  };
  // Finds the files of earlier processes. Errors of the folder, with the path.
  static absl::StatusOr<std::unique_ptr<SnapshotStore>> Open(Options options);
  // Waits for the file that is being written.
  ~SnapshotStore();

  // A slice for the snapshot of `step`: parameters, then each state vector, as long as the slice. Copies them. In
  // ascending order of steps for each bucket. Slices of no element need not be taken.
  void Take(int64_t step, int bucket, std::span<const std::span<const float>> slices);
  // REQUIRES: has_side_values.
  void SetSideValues(int64_t step, std::vector<double> values);

  // The steps whose snapshots are complete, ascending.
  std::vector<int64_t> held() const;
  // Those of them that survive this process; in a store without a folder all that are held.
  std::vector<int64_t> durable();

  // NotFound if there is none; DataLoss if its file is damaged: then it is no longer held.
  absl::StatusOr<std::shared_ptr<const Snapshot>> Get(int64_t step);

  // All shards have the snapshot of `step` durably.
  void DropBefore(int64_t step);
  // The run goes back to `step`: later snapshots will be taken again.
  void DropAfter(int64_t step);

 private:
  struct Building {
    std::shared_ptr<Snapshot> snapshot;
    int slices_missing = 0;
    bool side_values_missing = false;
  };

  explicit SnapshotStore(Options options);
  absl::Status FindFiles();
  Building& BuildingOf(int64_t step);
  void FinishIfComplete(int64_t step);
  std::string PathOf(int64_t step) const;
  void WriteInBackground();
  absl::Status WriteFile(const Snapshot& snapshot) const;
  absl::StatusOr<std::shared_ptr<const Snapshot>> ReadFile(int64_t step) const;
  void ForgetOldest();
  // Takes what the writing thread has done.
  void TakeWritten();

  const Options options_;
  std::vector<int64_t> offsets_;  // by bucket, in every array
  int64_t element_count_ = 0;
  int slice_count_ = 0;  // of an element or more
  std::map<int64_t, Building> building_;
  std::map<int64_t, std::shared_ptr<const Snapshot>> in_memory_;
  std::set<int64_t> in_files_;
  std::vector<std::shared_ptr<Snapshot>> spare_;  // memory that is taken again, so that its pages are there
  int64_t keep_from_ = 0;
  bool told_failure_ = false;

  Mutex mutex_;
  ConditionVariable changed_;
  std::shared_ptr<const Snapshot> to_write_ ABSL_GUARDED_BY(mutex_);  // the newest; null: none waits
  std::vector<int64_t> written_ ABSL_GUARDED_BY(mutex_);
  absl::Status write_failure_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread writer_;  // last: it uses the members above
};

}  // namespace starring

#endif  // STARRING_SERVER_ELASTIC_SNAPSHOT_STORE_H_
