// The known-answer test of a job with micro-batches: what a worker computes for leaf 0 of step 0, with the first
// parameters. Whoever gets other bits, for whatever reason (data, instruction set, libraries, a defective memory),
// would change the result with the leaves that it is dealt; it is refused before it contributes.
#ifndef STARRING_WORKER_TRAIN_KNOWN_ANSWER_H_
#define STARRING_WORKER_TRAIN_KNOWN_ANSWER_H_

#include <string>

#include "absl/status/statusor.h"
#include "worker/data/dataset.h"
#include "worker/model/network.h"
#include "worker/options/worker_options.h"

namespace starring {

struct KnownAnswer {
  std::string sha256;  // of the gradient, the loss, and what the leaf adds to batch norm's running statistics
  double seconds = 0;  // that the leaf takes once caches and memory are warm
};

// Changes nothing of the network. REQUIRES: micro-batches, and a network on the CPU.
absl::StatusOr<KnownAnswer> ComputeKnownAnswer(const WorkerOptions& worker, const TrainAndTest& data, Network* network);

}  // namespace starring

#endif  // STARRING_WORKER_TRAIN_KNOWN_ANSWER_H_
