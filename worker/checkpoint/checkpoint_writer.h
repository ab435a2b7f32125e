// Writes checkpoints in the background, one at a time, in a thread that a hung disk may keep beyond the writer's end.
// A writer outlives the checkpointers that use it, so that a generation of an elastic run does not wait for the disk.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_CHECKPOINT_CHECKPOINT_WRITER_H_
#define STARRING_WORKER_CHECKPOINT_CHECKPOINT_WRITER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/checkpoint/checkpoint.h"

namespace starring {

class CheckpointWriter {
 public:
  // Tests put a slow disk here. It may still run after the writer was destroyed.
  using WriteFunction = std::function<absl::Status(const std::string& dir, const Layout&, const Checkpoint&)>;

  explicit CheckpointWriter(absl::Duration deadline, WriteFunction write = WriteCheckpoint);
  // Waits for a write in progress until it is as old as the deadline: ending the process earlier would cut the write
  // short and waste the checkpoint. A slower write goes on without the writer.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // kTryAgain: a write that has failed is repeated once, a second later: others may have made room meanwhile.
  enum class AfterFailure { kGiveUp, kTryAgain };
  // REQUIRES: no write is in progress, and the result of the last one was taken.
  void Begin(const std::string& dir, const Layout& layout, Checkpoint checkpoint,
             AfterFailure after_failure = AfterFailure::kGiveUp);

  // Returns true as soon as no write is in progress, false after `patience`.
  bool WaitFor(absl::Duration patience);
  // The result of a write that has ended, once; nullopt if there is none. An error says why, and which complete
  // checkpoint is there.
  std::optional<absl::Status> TakeResult();

  // REQUIRES: a write is in progress.
  int64_t step() const;
  absl::Duration age() const;

 private:
  struct Write;

  const absl::Duration deadline_;
  const WriteFunction write_function_;
  std::shared_ptr<Write> write_;  // shared with its thread; null: none, or its result was taken
};

}  // namespace starring

#endif  // STARRING_WORKER_CHECKPOINT_CHECKPOINT_WRITER_H_
