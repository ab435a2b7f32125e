// Whether --checkpoint_dir can be the folder of a run's checkpoints, and the folder of a run without that flag.
//
// Thread safety: pure functions, but for the file system.
#ifndef STARRING_WORKER_CHECKPOINT_CHECKPOINT_PLACE_H_
#define STARRING_WORKER_CHECKPOINT_CHECKPOINT_PLACE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/options/worker_options.h"

namespace starring {

// InvalidArgument, with the flag to give, if the folder
//   - is itself a checkpoint: its checkpoints would come into that one;
//   - with --resume has checkpoints under other names only: the run would begin anew;
//   - without --resume has checkpoints: two runs would mix.
absl::Status CheckCheckpointPlace(const WorkerOptions& worker);

// The folder of a run that saves by default: starring-checkpoints/DATASET-MODEL-DATE-TIME, in UTC, relative to the
// folder in which the worker runs.
std::string DefaultCheckpointDir(const WorkerOptions& worker, absl::Time now);

// Makes such a folder: `dir`, or `dir`-2 and so on if that is there. Returns the one that is new. One that is there is
// returned if `holder`, which is not empty, has signed its lock: a generation before of the same elastic run.
absl::StatusOr<std::string> MakeDefaultCheckpointDir(const std::string& dir, const std::string& holder = "");

// Removes it if it has no checkpoint.
void RemoveDefaultCheckpointDir(const std::string& dir);

}  // namespace starring

#endif  // STARRING_WORKER_CHECKPOINT_CHECKPOINT_PLACE_H_
