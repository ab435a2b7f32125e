// After which steps a run writes a checkpoint.
//
// Thread safety: immutable.
#ifndef STARRING_WORKER_CHECKPOINT_SCHEDULE_H_
#define STARRING_WORKER_CHECKPOINT_SCHEDULE_H_

#include <cstdint>

namespace starring {

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

}  // namespace starring

#endif  // STARRING_WORKER_CHECKPOINT_SCHEDULE_H_
