// Everything between "the gradient of bucket b is complete" and "the new parameters of bucket b are here". There are
// three implementations: local; star, whose servers are reached over gRPC; and peer, among ranks (the ring, a star with
// or without servers, an allreduce of MPI or NCCL). README.md in this folder compares them.
//
// A *round* exchanges every bucket once. A run calls Start, then for each round Submit and Await for every bucket, then
// Finish. After an error of any call, only Abort, Release and destruction may follow. Rounds are numbered without gaps.
// The first one is JobSpec::first_step, which counts the updates that the parameters have had. The steps of training
// have numbers of their own: RoundOf (worker/step/in_flight_buckets.h) says which round ends a step.
//
// Threads: the trainer's thread makes all calls. Between Submit(round, b) and the return of Await(round, b) the
// exchange reads the gradient span of bucket b and writes the parameters of bucket b; the trainer touches neither.
#ifndef STARRING_WORKER_EXCHANGE_GRADIENT_EXCHANGE_H_
#define STARRING_WORKER_EXCHANGE_GRADIENT_EXCHANGE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/job/job_spec.h"
#include "common/job/sync.h"
#include "common/reduce/owner_map.h"

namespace starring {

struct ExchangeCounters {
  int64_t bytes_sent = 0;        // gradients and parameters, this worker, since Start
  int64_t bytes_received = 0;    // the same
  bool shared_memory = false;    // the bytes went through shared memory, not through a socket
  std::string not_shared;        // why they did not, if that was tried
  double optimizer_seconds = 0;  // spent in this process applying the optimizer (0 in a star: the servers do it)
};

// The choice of an exchange that may choose, and the reason, for people.
struct ExchangeChoice {
  Sync sync = Sync::kLocal;
  std::string reason;
};

// Memory that an exchange has for its user, constant from the return of Start until destruction.
struct ExchangeMemory {
  // For each node of this worker's share an array as long as the parameter vector. Writing gradients directly into it,
  // each at its place in the vector, avoids a copy; gradients in other memory may be submitted too. Empty: there is no
  // such memory.
  std::vector<std::span<float>> gradients;
  // If not empty, the exchange writes new parameters here, and not into the span given to Start.
  std::span<const float> parameters;
  // Where both, and the gradients passed to Submit, must be. kDevice only if the exchange was created with a GPU.
  enum class Place { kHost, kDevice };
  Place place = Place::kHost;
};

struct ExchangeFacts {
  OwnerMap owners;                       // of the elements of a bucket: servers, or ranks
  std::optional<ExchangeChoice> choice;  // empty: there was nothing to choose
  // Which way arrays travel inside the host, and why no better one, for people. Empty: there was nothing to choose.
  std::string same_host_reason;
};

// One gradient of one bucket.
struct Submission {
  int64_t round = 0;
  int bucket = 0;
  std::span<const float> gradient;  // the bucket's elements
  // Which node of this worker's share (JobSpec::micro_batches). The last one, which is the only one without
  // micro-batches, comes after all others.
  static constexpr int kLastNode = -1;
  int node = kLastNode;
};

// The snapshots of an elastic run. The trainer's thread makes all calls.
class Snapshots {
 public:
  // `values` are kept with the snapshot of `step`, besides parameters and state. For rank 0 alone; does not wait for
  // other processes. An error is returned by the next Sum.
  virtual void SubmitSideValues(int64_t step, const std::vector<double>& values) = 0;
  // The values that were kept with the snapshot with which the generation began.
  virtual absl::StatusOr<std::vector<double>> FetchSideValues() = 0;
  // Begins to fill (*state)[i] with the whole optimizer state vector i of the snapshot of `step`, while training goes
  // on. Rank 0 alone, once all buckets of step - 1 were awaited; one snapshot at a time.
  virtual void BeginRead(int64_t step, const std::shared_ptr<std::vector<std::vector<float>>>& state) = 0;
  // Whether AwaitRead would return at once.
  virtual bool HasRead() = 0;
  virtual absl::Status AwaitRead() = 0;
  // Ends this worker's part in a generation. The other workers get no message about it. REQUIRES: everything was
  // awaited.
  virtual absl::Status Leave() = 0;

 protected:
  ~Snapshots() = default;
};

class StreamExchange;  // worker/exchange/stream_exchange.h

class GradientExchange {
 public:
  virtual ~GradientExchange() = default;

  // Brings all workers together and gives them rank 0's parameters and optimizer state: the initial ones, or those of a
  // checkpoint, which rank 0 has loaded into `parameters` and job.optimizer_state. `parameters` stays valid until
  // Release; the exchange writes new parameters there. If memory().parameters is not empty, the caller may
  // free `parameters` when Start has returned OK. The spans in job.optimizer_state may end when Start returns.
  //
  // InvalidArgument, naming the rank that differs, if layouts, hyperparameters, flags or world sizes disagree;
  // DeadlineExceeded, naming the missing ranks, if not all workers join within job.join_deadline.
  virtual absl::Status Start(const JobSpec& job, std::span<float> parameters) = 0;

  // Valid after Start.
  virtual const ExchangeMemory& memory() const;

  // The gradient of a bucket is complete. Does not wait for other processes. Buckets are submitted in ascending order,
  // every bucket once a round. The gradients of all nodes stay unchanged until Await(round, bucket) has returned. An
  // error is returned by Await. REQUIRES: an exchange that takes micro-batches, if the share has several nodes.
  virtual void Submit(const Submission& submission) = 0;

  // Returns when the parameters of `bucket` have the update of `round`. Must be called once for every Submit.
  // REQUIRES: with OptimizerConfig::clip_norm, all buckets of the round were submitted.
  virtual absl::Status Await(int64_t round, int bucket) = 0;

  // From `round` on, the parameter vector is cut in these buckets; no bit changes. Collective: every worker gives the
  // same. Unimplemented, before anything is changed, by an exchange that cannot. REQUIRES: no bucket is in flight, and
  // round - 1 was the last that was submitted.
  virtual absl::Status UseBuckets(const BucketMap& /*buckets*/, int64_t /*round*/) {
    return absl::UnimplementedError("this exchange keeps to the buckets of its start: give --bucket_bytes a number");
  }

  // Replaces `values` on every worker by their element-wise sum over all workers, added in rank order. Also a barrier.
  // For few numbers (at most kSumValuesMax of limits.h). May be called while buckets are in flight. FailedPrecondition,
  // naming two ranks and what each adds, unless all ranks give the same purpose and the same number of values.
  virtual absl::Status Sum(SumPurpose purpose, std::span<double> values) = 0;

  // Fills state[i] of rank 0 with the whole optimizer state vector i, of layout.element_count() elements; the spans of
  // other ranks may be empty. Collective. REQUIRES: no bucket is in flight.
  virtual absl::Status GatherOptimizerState(std::span<const std::span<float>> state) = 0;

  // Tells the other processes, if they can be reached within moments, that this worker gives up and why. Only Release
  // and destruction may follow.
  virtual void Abort(const absl::Status& why) = 0;

  // The first step of destruction, after Finish, Abort or an error: ends the exchange's threads, after which it no
  // longer touches the memory it was given. False if a library still may: MPI may write into a receive that was posted
  // before an error. Then the caller must keep that memory and this object until the process ends.
  [[nodiscard]] virtual bool Release() { return true; }

  // The orderly end. Collective. REQUIRES: no bucket is in flight.
  virtual absl::Status Finish() = 0;

  virtual ExchangeCounters counters() const = 0;
  // Valid after Start.
  virtual ExchangeFacts facts() const { return {}; }
  // Null: the exchange has none. Valid as long as the exchange.
  virtual Snapshots* snapshots() { return nullptr; }
  // Not null: rounds go through it, and neither Submit nor Await is called. Valid from Start on, as long as the
  // exchange. Only with memory().place == kDevice and gradients in memory().gradients.
  virtual StreamExchange* streams() { return nullptr; }
};

inline const ExchangeMemory& GradientExchange::memory() const {
  static const ExchangeMemory* const kNone = new ExchangeMemory();
  return *kNone;
}

// Sums any number of values, also more than one message of an exchange can carry. All ranks have the same number, so
// they cut it into the same parts.
inline absl::Status SumInParts(SumPurpose purpose, std::span<double> values, GradientExchange* exchange) {
  while (!values.empty()) {
    const std::span<double> part = values.first(std::min<size_t>(values.size(), kSumValuesMax));
    if (const absl::Status status = exchange->Sum(purpose, part); !status.ok()) return status;
    values = values.subspan(part.size());
  }
  return absl::OkStatus();
}

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_GRADIENT_EXCHANGE_H_
