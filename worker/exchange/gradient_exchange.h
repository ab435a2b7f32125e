// Everything between "the gradient of bucket b is complete" and "the new parameters of bucket b are here", behind one
// interface: local, star, ring, mpi.
//
// Threads: one trainer thread makes all calls. Between Submit(step, b) and the return of Await(step, b) the gradient
// span of bucket b belongs to the exchange (read), and so do the parameters of bucket b (written): the trainer touches
// neither.
#ifndef STARRING_WORKER_EXCHANGE_GRADIENT_EXCHANGE_H_
#define STARRING_WORKER_EXCHANGE_GRADIENT_EXCHANGE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/job_spec.h"
#include "common/sum_purpose.h"

namespace starring {

struct ExchangeCounters {
  int64_t bytes_sent = 0;        // gradients and parameters, this worker, since Start
  int64_t bytes_received = 0;    // likewise
  bool shared_memory = false;    // these bytes went through no socket
  double optimizer_seconds = 0;  // spent in this process applying the optimizer (0 in a star: the servers do it)
};

class GradientExchange {
 public:
  virtual ~GradientExchange() = default;

  // Every worker leaves with identical parameters: rank 0's, or the checkpoint's (rank 0 has loaded it into
  // `parameters` and job.optimizer_state). `parameters` stays valid until Finish; the exchange writes new parameters
  // there. Fails when layouts, hyperparameters or world sizes disagree, naming the rank that differs; or when somebody
  // is missing at the deadline, naming who.
  virtual absl::Status Start(const JobSpec& job, std::span<float> parameters) = 0;

  // Memory of the exchange's own that spares it copying, each array as long as the parameter vector; empty if it has
  // none. It begins with the return of Start and ends with the exchange.
  // Gradients should lie here, each bucket at its place, when they are submitted; they may lie elsewhere.
  virtual std::span<float> gradient_memory() { return {}; }
  // Unless empty, parameters are here from Start on, and not in what Start was given.
  virtual std::span<const float> parameter_memory() const { return {}; }
  // From Start on, where these lie, and what Submit is given: on a GPU only if the exchange was created with one.
  enum class MemoryPlace { kHost, kDevice };
  virtual MemoryPlace memory_place() const { return MemoryPlace::kHost; }

  // `gradient` (the bucket's elements) is complete for `step`. Returns at once. Buckets are submitted in ascending
  // order, every bucket once a step.
  virtual void Submit(int64_t step, int bucket, std::span<const float> gradient) = 0;

  // Returns when `parameters` of this bucket hold what step + 1 may read. Must be called once for every Submit.
  virtual absl::Status Await(int64_t step, int bucket) = 0;

  // Element-wise sum over all workers, in rank order, on every worker; also a barrier. For few numbers (at most
  // limits.h kSumValuesMax). May be called while buckets are in flight. FailedPrecondition, naming two ranks and what
  // each adds, unless all ranks give the same purpose and the same number of values.
  virtual absl::Status Sum(SumPurpose purpose, std::span<double> values) = 0;

  // Collective, with no bucket in flight: rank 0 leaves with the whole of every optimizer state vector (state[i] has
  // layout.element_count() elements); the other ranks' spans may be empty.
  virtual absl::Status GatherOptimizerState(std::span<const std::span<float>> state) = 0;

  // Tells the peers, as well as it can and at once, that this worker gives up and why. Only destruction may follow.
  virtual void Abort(const absl::Status& why) = 0;

  // The first step of destruction, after Finish, Abort or an error: ends what this object does by itself, so that it
  // touches nothing any more of the memory that it was given. False if a library still may, as MPI may write into a
  // receive that was posted before an error: then neither that memory nor this object may go before the process does.
  // Only destruction may follow, and memory of the exchange's own ends with that.
  virtual bool Release() { return true; }

  // Orderly end, with no bucket in flight; collective.
  virtual absl::Status Finish() = 0;

  virtual ExchangeCounters counters() const = 0;
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_GRADIENT_EXCHANGE_H_
