// The training loop: one per worker, the same for every exchange.
//
//   for each step:  batch -> forward (before a layer: Await its buckets of the step before)
//                         -> backward (after a layer: Submit the buckets that are complete)
//   for each epoch: Await everything, test accuracy over all ranks, checkpoint by rank 0
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_TRAIN_TRAINER_H_
#define STARRING_WORKER_TRAIN_TRAINER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/job/bucket_map.h"
#include "common/metrics/trace.h"
#include "common/watch/progress_state.h"
#include "worker/data/dataset.h"
#include "worker/data/normalization.h"
#include "worker/exchange/gradient_exchange.h"
#include "worker/model/network.h"
#include "worker/options/deciding_facts.h"
#include "worker/options/worker_options.h"
#include "worker/step/training_step.h"
#include "worker/train/progress.h"
#include "worker/train/segment.h"
#include "worker/train/train_result.h"

namespace starring {

// Samples that are evaluated at once: per rank, or with --micro_batches by whoever does.
inline constexpr int64_t kEvaluationBatch = 256;

class CheckpointWriter;
class WarmStart;

struct TrainOptions {
  const WorkerOptions* worker = nullptr;  // this and the next six outlive the call
  const TrainAndTest* data = nullptr;
  Network* network = nullptr;
  GradientExchange* exchange = nullptr;
  const BucketMap* buckets = nullptr;  // of the first step, unless WorkerOptions::TriesBucketSizes
  TrainingStep* step = nullptr;
  CheckpointWriter* checkpoint_writer = nullptr;
  Progress::Style progress = Progress::Style::kNone;
  // Called with the result when all that the ranks do together is done, and before they part: what it writes is there
  // before anybody may hold the run to be over. An error of it ends no training (TrainResult::reported).
  std::function<absl::Status(const TrainResult&)> report;
  std::string layer_file;   // the text, for checkpoints
  std::string default_dir;  // of checkpoints, with WorkerOptions::saves_by_default
  Facts facts;              // DecidingFacts
  Facts machine_facts;      // of this machine; other ranks may have others, and a run that resumes says so
  // Facts about this rank's device that must be the same on all ranks, for JobSpec::agreed_flags. Called after every
  // shape that any rank will meet has been planned for. Null: there are none, and no shape is planned in advance.
  std::function<absl::StatusOr<Facts>()> device_facts;
  std::vector<RunObserver*> observers;
  Trace* trace = nullptr;                      // null without a trace
  TraceTrack* track = nullptr;                 // the calling thread's track of that trace
  ProgressState* state = nullptr;              // told what the calling thread is doing, for stall reports; may be null
  const WarmStart* warm_start = nullptr;       // the first values of step 0, if a file has them; outlives the call
  Segment segment;                             // a generation's; the default: a run that is not elastic
  std::optional<Normalization> normalization;  // if it is known already; otherwise the ranks measure it together
};

// Trains to the end, or to the step at which the ranks agree to stop. After an error, the other ranks have been told
// (GradientExchange::Abort).
absl::StatusOr<TrainResult> Train(const TrainOptions& options);

}  // namespace starring

#endif  // STARRING_WORKER_TRAIN_TRAINER_H_
