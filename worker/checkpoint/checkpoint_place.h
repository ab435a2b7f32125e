// Whether --checkpoint_dir can be the folder of a run's checkpoints.
//
// Thread safety: pure functions, but for the file system.
#ifndef STARRING_WORKER_CHECKPOINT_CHECKPOINT_PLACE_H_
#define STARRING_WORKER_CHECKPOINT_CHECKPOINT_PLACE_H_

#include "absl/status/status.h"
#include "worker/options/worker_options.h"

namespace starring {

// InvalidArgument, with the flag to give, if the folder
//   - is itself a checkpoint: its checkpoints would come into that one;
//   - with --resume has checkpoints under other names only: the run would begin anew;
//   - without --resume has checkpoints: two runs would mix.
absl::Status CheckCheckpointPlace(const WorkerOptions& worker);

}  // namespace starring

#endif  // STARRING_WORKER_CHECKPOINT_CHECKPOINT_PLACE_H_
