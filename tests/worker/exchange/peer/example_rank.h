// The work of a test's process as one rank: it trains an example job for some steps through the real exchange and
// compares every bit with the reference. Its flags are --steps, --deadline_ms, and --fault, which makes one rank
// misbehave.
#ifndef STARRING_TESTS_WORKER_EXCHANGE_PEER_EXAMPLE_RANK_H_
#define STARRING_TESTS_WORKER_EXCHANGE_PEER_EXAMPLE_RANK_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tests/worker/exchange/peer/example_job.h"
#include "worker/exchange/gradient_exchange.h"

namespace starring {

// The value of --deadline_ms.
absl::Duration ExampleRankDeadline();

// The memory of a failed training is leaked: the library may still write to it.
absl::Status TrainExampleJob(GradientExchange& exchange, const ExampleJob& job, int rank);

}  // namespace starring

#endif  // STARRING_TESTS_WORKER_EXCHANGE_PEER_EXAMPLE_RANK_H_
