// An elastic run, as one worker sees it: one generation after the other, until the run is over or this worker leaves.
// The process, the data set and the network stay; exchange, training step and trainer are made anew for each.
#ifndef STARRING_WORKER_ELASTIC_ELASTIC_RUN_H_
#define STARRING_WORKER_ELASTIC_ELASTIC_RUN_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "common/watch/progress_state.h"
#include "worker/data/dataset.h"
#include "worker/data/normalization.h"
#include "worker/elastic/worker_member.h"
#include "worker/model/network.h"
#include "worker/options/deciding_facts.h"
#include "worker/options/worker_options.h"
#include "worker/train/segment.h"
#include "worker/train/train_result.h"

namespace starring {

struct ElasticRun {
  WorkerOptions* options = nullptr;  // rank, world size and servers become those of each generation
  const TrainAndTest* data = nullptr;
  Network* network = nullptr;
  Facts facts;                    // what all workers must have alike, with the known answer
  int64_t first_step = 0;         // of the run, if it begins with this worker
  double trial_leaf_seconds = 0;  // KnownAnswer's
  const ProgressState* state = nullptr;
  std::function<bool()> stop_requested;  // any thread
  std::function<void(const std::string&)> say;
  // Makes what a generation needs and trains it.
  std::function<absl::StatusOr<TrainResult>(const Segment& segment)> train;
};

// Returns when the run is over, or this worker has left it.
absl::Status RunElastic(const ElasticRun& run);

}  // namespace starring

#endif  // STARRING_WORKER_ELASTIC_ELASTIC_RUN_H_
