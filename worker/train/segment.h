// A segment of a run: the steps that one trainer takes, from its first step to the end of the run or to an earlier
// stop. A run without generations is one segment, with the values below. In an elastic run every generation is a
// segment.
#ifndef STARRING_WORKER_TRAIN_SEGMENT_H_
#define STARRING_WORKER_TRAIN_SEGMENT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"

namespace starring {

struct Segment {
  int64_t number = 0;  // of the generation, from 1; 0: the run has no generations
  // Empty: the step of the newest checkpoint with --resume, else 0. A generation, whose first step is given, trains
  // that step before it stops.
  std::optional<int64_t> first_step;
  bool from_snapshot = false;  // the owners have the parameters and the state of first_step
  bool ends_run = false;       // the run was asked to stop: train no step, save, and end
  // The owners keep a snapshot every so many steps and at the end of an epoch (IsSnapshotStep). The segment is saved
  // and stops at snapshots alone, and the next generation goes on from there. 0: there are no snapshots. Then the
  // segment is saved after any step, and a stop ends the run.
  int64_t snapshot_every = 0;
  std::vector<int> leaf_owners;  // as JobSpec::leaf_owners
  // Whether the segment is to stop. Called once a step.
  std::function<bool()> stop = [] { return false; };
  // A step has taken `step_seconds`. For `compute_seconds` of them this worker has computed.
  std::function<void(int64_t next_step, double step_seconds, double compute_seconds)> on_step = [](int64_t, double,
                                                                                                   double) {};
  // A micro-batch, or a batch of an evaluation, is done; or rank 0 goes on waiting for its disk.
  std::function<void()> on_leaf = [] {};
  // Any thread. Whether the generation was cut short: no message of it will be answered.
  std::function<bool()> is_over = [] { return false; };
  // Fails if the step was computed before, with another loss.
  std::function<absl::Status(int64_t step, double loss)> check_loss = [](int64_t, double) { return absl::OkStatus(); };
};

}  // namespace starring

#endif  // STARRING_WORKER_TRAIN_SEGMENT_H_
