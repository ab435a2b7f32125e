// Saves checkpoints in the background, and restores the newest one.
//
// A save copies parameters, optimizer state and buffers in memory, collectively over the ranks, and returns; rank 0's
// CheckpointWriter writes the files while training goes on. On a slow disk:
//   - a periodic checkpoint that is due while the previous one is still being written waits one second, and is then
//     skipped with a warning;
//   - all ranks wait for the last checkpoint, and for that of a stop, up to --checkpoint_deadline_s. They wait in sums,
//     so that no deadline of the exchange passes meanwhile and no rank ends the job before rank 0 is done.
// A disk that fails ends no training. If the last checkpoint was not written, those sums tell all ranks.
//
// A run without --checkpoint_dir saves by default, into a folder of its own. A folder that cannot be made, a full disk
// or too little memory is then a warning: no user has asked for that checkpoint.
//
// In an elastic run the optimizer's state comes from the owners' snapshots, while training goes on, and only rank 0
// takes part (SaveSnapshot).
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_CHECKPOINT_CHECKPOINTER_H_
#define STARRING_WORKER_CHECKPOINT_CHECKPOINTER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/checkpoint.h"
#include "common/job/bucket_map.h"
#include "worker/checkpoint/checkpoint_writer.h"
#include "worker/checkpoint/resume_check.h"
#include "worker/exchange/gradient_exchange.h"
#include "worker/model/network.h"
#include "worker/options/deciding_facts.h"
#include "worker/options/worker_options.h"

namespace starring {

// After which steps a run writes a checkpoint.
struct CheckpointSchedule {
  int64_t steps_per_epoch = 1;
  int64_t every_epochs = 1;
  int64_t every_steps = 0;  // over the whole run, in addition to `every_epochs`; 0: never in the middle of an epoch

  // True if a checkpoint is due after `step_count` steps of the run, counting those before a resume. The checkpoints at
  // the end of the run and at a stop are written in addition.
  bool IsDue(int64_t step_count) const {
    if (step_count <= 0) return false;
    if (every_steps > 0 && step_count % every_steps == 0) return true;
    return step_count % steps_per_epoch == 0 && step_count / steps_per_epoch % every_epochs == 0;
  }
};

class Checkpointer {
 public:
  struct Options {
    const WorkerOptions* worker = nullptr;  // this and the next three outlive the checkpointer
    Network* network = nullptr;
    const BucketMap* buckets = nullptr;  // may become another one between two calls
    CheckpointWriter* writer = nullptr;
    int64_t steps_per_epoch = 1;
    int64_t end_step = 0;  // of the run
    // As TrainingStep::GatherOptimizerState.
    std::function<absl::Status(std::span<const std::span<float>>)> gather_optimizer_state;
    std::function<void(const std::string&)> warn;  // shows a line to a person
    bool goes_on = false;                          // the run has begun already: the folder may have its checkpoints
    bool leaves_writes = false;                    // a write may be in progress at the end, and at the beginning
    std::function<void()> on_wait = nullptr;       // called several times a second while SaveFinal waits for the disk
    std::string default_dir;                       // with WorkerOptions::saves_by_default
  };
  // InvalidArgument as CheckCheckpointPlace, and if another job writes there, which is named: rank 0 holds a lock on
  // the folder while the checkpointer lives. An earlier rank 0 of the same elastic run, which sleeps, may have the
  // lock. With saves_by_default rank 0 makes the folder, in an elastic run in SaveFinal; a run that saves nothing there
  // takes it away.
  static absl::StatusOr<std::unique_ptr<Checkpointer>> Create(Options options);
  // Waits for a write in progress, up to --checkpoint_deadline_s, unless leaves_writes, or SaveFinal has done so.
  ~Checkpointer();

  // Creates --checkpoint_dir, if there is one. InvalidArgument if checkpoints cannot be written there. For a worker of
  // an elastic run, before it attends: it may become rank 0 at any time, and in a run that goes on Create is lenient.
  static absl::Status CheckFolder(const WorkerOptions& worker);

  // The step that Restore would return. Errors as Restore.
  static absl::StatusOr<int64_t> NewestStep(const WorkerOptions& worker, Network* network);

  // Sets the facts that decide the run's numbers besides its flags, for checkpoints and Restore. A fact replaces a flag
  // of its name.
  void set_facts(Facts facts) { facts_ = std::move(facts); }

  // Sets what checkpoints say of the model.
  void set_model(TrainedModel model) { model_ = std::move(model); }

  // Fills parameters, the network's buffers and `state` from the newest complete checkpoint, and returns the next step;
  // returns 0 if there is no checkpoint. Every rank reads the files. Only rank 0 reads `state`, one vector per state
  // vector of the optimizer: on other ranks, and without a checkpoint, it stays empty. InvalidArgument as CheckResume;
  // the lines that it returns go to `warn` and to resume_notes().
  absl::StatusOr<int64_t> Restore(std::span<float> parameters, std::vector<std::vector<float>>* state);

  // The lines about the resume that a person must read.
  const std::vector<std::string>& resume_notes() const { return resume_notes_; }

  // The best epoch of this run, or of the run that was restored, if that had the same test set. Checkpoints contain it.
  const BestEpoch& best() const { return best_; }
  void set_best(const BestEpoch& best) { best_ = best; }

  // The size of buckets that this run, or the run that was restored, has chosen by --bucket_bytes=auto; 0: none.
  // Checkpoints contain it.
  int64_t chosen_bucket_bytes() const { return chosen_bucket_bytes_; }
  void set_chosen_bucket_bytes(int64_t bytes) { chosen_bucket_bytes_ = bytes; }

  // Collective; no bucket may be in flight. Fails with an error of the exchange, or if a parameter is not finite. A
  // file that cannot be written is only a warning.
  absl::Status SavePeriodic(int64_t step, std::span<const float> parameters, GradientExchange* exchange);

  // The same in an elastic run, of a step that has a snapshot. Only rank 0 does anything, and it waits for no other
  // rank. The file is begun by a later call of PollSnapshot, to be made once a step, or by AwaitSnapshot.
  absl::Status SaveSnapshot(int64_t step, std::span<const float> parameters, GradientExchange* exchange);
  absl::Status PollSnapshot(GradientExchange* exchange);
  absl::Status AwaitSnapshot(GradientExchange* exchange);
  // Whether a checkpoint that was due by now is missing, because the generation that would have written it was cut.
  // Only rank 0 knows; false on others.
  bool IsOverdue(const CheckpointSchedule& schedule, int64_t step) const;

  // As SavePeriodic, but never skipped, and every rank returns when the checkpoint is on the disk. A write that fails
  // is tried again. NotWrittenError, on every rank, if it fails again or takes longer than --checkpoint_deadline_s;
  // with saves_by_default a warning.
  absl::Status SaveFinal(int64_t step, std::span<const float> parameters, GradientExchange* exchange);

  // The only checkpoint in the folder `best` of --checkpoint_dir. All ranks wait for the write before, up to
  // --checkpoint_deadline_s. Collective, as SavePeriodic; a file that cannot be written is only a warning.
  absl::Status SaveBest(int64_t step, std::span<const float> parameters, GradientExchange* exchange);

  // The step of the checkpoint in `best` that this process has written; 0: none. Only rank 0 knows; 0 on others.
  int64_t best_saved_step() const { return best_saved_step_; }

  // Whether the newest checkpoint of this process is on the disk. Only rank 0 knows; false on others.
  bool is_saved() const { return is_saved_; }

  // The folder of this run's checkpoints; empty: there are none, or rank 0 alone has it, by default.
  const std::string& dir() const { return dir_; }

 private:
  explicit Checkpointer(Options options);
  bool writes() const { return options_.worker->rank == 0; }
  // Whether the ranks make checkpoints.
  bool saves() const { return options_.worker->saves_by_default || !options_.worker->checkpoint_dir.empty(); }
  void MakeDefaultDir();
  absl::Status CheckMemory(int64_t parameter_count) const;
  absl::Status SaveByDefault(int64_t step, std::span<const float> parameters, GradientExchange* exchange);
  absl::Status SaveLast(int64_t step, std::span<const float> parameters, GradientExchange* exchange);
  absl::Status CheckValues(const Checkpoint& checkpoint) const;
  enum class Place { kFolder, kBest };  // --checkpoint_dir, or its folder `best`
  absl::Status Save(int64_t step, std::span<const float> parameters, const GradientExchange& exchange,
                    CheckpointWriter::AfterFailure after_failure, Place place = Place::kFolder);
  // All of a checkpoint but the optimizer's state.
  absl::StatusOr<Checkpoint> Collect(int64_t step, std::span<const float> parameters,
                                     const GradientExchange& exchange) const;
  absl::Status BeginWrite(Checkpoint checkpoint, CheckpointWriter::AfterFailure after_failure,
                          Place place = Place::kFolder);
  void WarnSkipped(int64_t step) const;
  void Note(const std::string& text);
  absl::StatusOr<double> SumOfRanks(double mine, GradientExchange* exchange);
  absl::Status WaitForWrite(int64_t step, GradientExchange* exchange);
  absl::Status TakeResult();
  void WarnOfFailure();
  std::vector<std::vector<ElementRange>> OwnerRanges(const GradientExchange& exchange) const;

  const Options options_;
  std::vector<std::string> state_names_;
  std::string dir_;
  TrainedModel model_;
  BestEpoch best_;
  Facts facts_;
  std::vector<std::string> resume_notes_;
  int64_t chosen_bucket_bytes_ = 0;
  std::optional<FolderLock> lock_;
  bool is_saved_ = false;
  int64_t best_saved_step_ = 0;
  int64_t best_in_writing_ = 0;  // the step of a write into `best` whose result was not taken; 0: none
  bool gave_up_ = false;         // on a write that took too long
  // SaveSnapshot: the checkpoint whose state is being read, and that state.
  std::optional<Checkpoint> reading_;
  std::shared_ptr<std::vector<std::vector<float>>> read_state_;  // shared with the exchange, which may end later
};

}  // namespace starring

#endif  // STARRING_WORKER_CHECKPOINT_CHECKPOINTER_H_
