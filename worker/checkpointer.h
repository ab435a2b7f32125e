// Saves checkpoints in the background, restores the newest one.
//
// Save snapshots parameters, optimizer state and buffers (a copy in memory, collective over the ranks) and returns; a
// thread of rank 0 writes the files while training goes on. One write at a time. What a slow disk may do:
//   - a periodic checkpoint that is due while the one before is still being written waits a second for that, and is
//     then skipped, with a warning;
//   - the last one, and that of a stop, is waited for by all ranks, up to --checkpoint_deadline_s. The ranks wait in
//     sums, so no deadline of the exchange passes meanwhile, and none of them ends the job before rank 0 is done.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_CHECKPOINTER_H_
#define STARRING_WORKER_CHECKPOINTER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/bucket_map.h"
#include "common/checkpoint/checkpoint.h"
#include "worker/exchange/gradient_exchange.h"
#include "worker/model/network.h"
#include "worker/worker_options.h"

namespace starring {

// After which steps a run writes a checkpoint.
struct CheckpointSchedule {
  int64_t steps_per_epoch = 1;
  int64_t every_epochs = 1;
  int64_t every_steps = 0;  // counted over the whole run, beside `every_epochs`; 0: never in the middle of an epoch

  // True if a checkpoint is due when `step_count` steps of the run are over, those of a resumed run's first part
  // included. The last one, and that of a stop, come in addition.
  bool IsDue(int64_t step_count) const {
    if (step_count <= 0) return false;
    if (every_steps > 0 && step_count % every_steps == 0) return true;
    return step_count % steps_per_epoch == 0 && step_count / steps_per_epoch % every_epochs == 0;
  }
};

class Checkpointer {
 public:
  struct Options {
    const WorkerOptions* worker = nullptr;  // these outlive the checkpointer
    Network* network = nullptr;
    const BucketMap* buckets = nullptr;
    int64_t steps_per_epoch = 1;
    // As TrainingStep::GatherOptimizerState.
    std::function<absl::Status(std::span<const std::span<float>>)> gather_optimizer_state;
    std::function<void(const std::string&)> warn;  // a person reads it
    // Tests put a slow disk here. It may still run when the checkpointer is gone.
    std::function<absl::Status(const std::string& dir, const Layout&, const Checkpoint&)> write = WriteCheckpoint;
  };
  // InvalidArgument if --checkpoint_dir holds checkpoints and --resume is not given: a run would mix with another's; or
  // if another job writes there: rank 0 holds a lock on the folder as long as the checkpointer lives.
  static absl::StatusOr<std::unique_ptr<Checkpointer>> Create(Options options);
  // Waits for a write in progress, up to --checkpoint_deadline_s; then it goes on without us.
  ~Checkpointer();

  // Fills parameters, the network's buffers and `state` from the newest complete checkpoint, and returns the step to go
  // on with, 0 without one. Every rank reads for itself, but for `state` (one vector per state vector), which rank 0
  // alone reads: it stays empty elsewhere, and without a checkpoint.
  absl::StatusOr<int64_t> Restore(std::span<float> parameters, std::vector<std::vector<float>>* state);

  // Collective, with no bucket in flight. An error is the exchange's, or says that parameters are not finite; a file
  // that cannot be written is a warning.
  absl::Status SavePeriodic(int64_t step, std::span<const float> parameters, GradientExchange* exchange);

  // The same, never skipped, and every rank returns when it is on the disk. DeadlineExceeded, on every rank alike, when
  // that takes longer than --checkpoint_deadline_s.
  absl::Status SaveFinal(int64_t step, std::span<const float> parameters, GradientExchange* exchange);

  // The newest checkpoint of this process is on the disk. Rank 0 knows.
  bool is_saved() const { return is_saved_; }

 private:
  struct Write;  // one checkpoint on its way to the disk

  explicit Checkpointer(Options options);
  bool writes() const { return options_.worker->rank == 0; }
  absl::Status Save(int64_t step, std::span<const float> parameters);
  absl::StatusOr<double> SumOfRanks(double mine, GradientExchange* exchange);
  absl::Status WaitForWrite(int64_t step, GradientExchange* exchange);
  void Collect();
  std::vector<std::vector<ElementRange>> OwnerRanges() const;

  const Options options_;
  std::vector<std::string> state_names_;
  std::optional<FolderLock> lock_;
  std::shared_ptr<Write> write_;  // shared with its thread, which a hung disk may keep longer; null: none
  bool is_saved_ = false;
};

}  // namespace starring

#endif  // STARRING_WORKER_CHECKPOINTER_H_
