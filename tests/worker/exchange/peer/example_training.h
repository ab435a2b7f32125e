// The training of an example job by one rank, as the trainer does it, for tests of the exchange. Tests change it by
// hooks: other flags, what happens before a step, and other buckets from a step on.
#ifndef STARRING_TESTS_WORKER_EXCHANGE_PEER_EXAMPLE_TRAINING_H_
#define STARRING_TESTS_WORKER_EXCHANGE_PEER_EXAMPLE_TRAINING_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "common/job/job_spec.h"
#include "common/reduce/owner_map.h"
#include "tests/worker/exchange/peer/example_job.h"
#include "worker/exchange/gradient_exchange.h"

namespace starring {

struct ExampleTraining {
  ExampleJob job;
  int64_t step_count = 3;
  int64_t first_step = 0;
  std::vector<float> start;               // rank 0's parameters; empty: the job's
  std::vector<std::vector<float>> state;  // rank 0's optimizer state; empty: zeros
  std::function<void(int rank, JobSpec& spec)> change_spec = [](int, JobSpec&) {};
  // Called before each step; an error ends the rank's training.
  std::function<absl::Status(int rank, int64_t step)> before_step = [](int, int64_t) { return absl::OkStatus(); };
  // By step: from that one on, buckets of another size.
  std::map<int64_t, int64_t> bucket_bytes_from;
};

// The result of one rank. Outlives the rank's exchange: after an error its memory belongs to the transport.
struct ExampleOutcome {
  absl::Status status;
  std::vector<std::vector<float>> gradients;  // of the last step, by node of its share
  std::vector<float> parameters;
  std::vector<std::vector<float>> state;  // rank 0
  ExchangeCounters counters;
  std::optional<ExchangeChoice> choice;
  OwnerMap owners;
};

// In each step submits all buckets, adds two numbers over all ranks, and awaits the buckets in the opposite order. An
// error is told to the other ranks, so that they do not wait for this one until their deadlines.
void RunExampleTraining(const ExampleTraining& training, GradientExchange& exchange, int rank, ExampleOutcome& outcome);

}  // namespace starring

#endif  // STARRING_TESTS_WORKER_EXCHANGE_PEER_EXAMPLE_TRAINING_H_
