// A bucket machine turns submitted gradients into new parameters, bucket by bucket, driven by a transport's
// completions. There are five: the ring (ring_machine.h), and that of ranks that map each other's GPU memory
// (gpu_ring_machine.h); the star over messages, co-located or with servers (star_machine.h); the co-located star in
// memory that the ranks share (memory_machine.h); and the control (below), which leaves the sum to an allreduce of MPI
// or NCCL. A machine never waits, starts no thread and reads no clock but for traces. Thread safety: none; one thread
// at a time.
#ifndef STARRING_WORKER_EXCHANGE_PEER_BUCKET_MACHINE_H_
#define STARRING_WORKER_EXCHANGE_PEER_BUCKET_MACHINE_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/job/bucket_map.h"
#include "common/metrics/trace.h"
#include "common/transport/allreduce_transport.h"
#include "common/transport/transport.h"
#include "worker/exchange/gradient_exchange.h"
#include "worker/exchange/slice_owner.h"

namespace starring {

// How many buckets a ring or a star has in flight where the floats are a GPU's. Each of them takes memory of the GPU,
// since a bucket is one message for each hop, or owner.
inline int GpuBucketsInFlightMax(const BucketMap& buckets) {
  return std::min(RingBlocksInFlightMax(buckets.world_size()), buckets.bucket_count());
}

// Posts its operations on the transport and goes on with each of them in OnCompletion.
class BucketMachine : public Transport::Poster {
 public:
  virtual ~BucketMachine() = default;

  // As GradientExchange::Submit.
  virtual void Submit(int64_t step, int bucket, std::span<const float> gradient) = 0;
  // As GradientExchange::SubmitNode. REQUIRES: a machine that was made for micro-batches.
  virtual void SubmitNode(int64_t /*step*/, int /*bucket*/, int /*node*/, std::span<const float> /*gradient*/) {
    CHECK(false) << "this machine takes one gradient a step";
  }

  // True when the trainer may write the gradient of `bucket` and read its parameters: nothing of the bucket is in
  // flight but parameters on their way to other ranks.
  virtual bool IsReady(int bucket) const = 0;

  // True when nothing is in flight.
  virtual bool IsIdle() const = 0;

  // The bucket that has been in flight longest. REQUIRES: !IsIdle().
  struct InFlight {
    int64_t step = 0;
    int bucket = 0;
  };
  virtual InFlight Oldest() const = 0;

  virtual ExchangeCounters counters() const = 0;
};

// For the machines that send messages. All pointers outlive the machine.
struct RankMachineOptions {
  const BucketMap* buckets = nullptr;
  SliceOwner* owner = nullptr;  // owns this rank's part of every bucket; of no use if there are servers
  std::span<float> parameters;  // the parameter vector, in the owner's memory, as gradients are
  Transport* transport = nullptr;
  TraceTrack* track = nullptr;   // the track of the thread that drives the machine; null: there is no trace
  int first_tag = 0;             // the machine uses tags from here on
  int groups_in_flight_max = 0;  // 0: as many as limits.h allows
};

// The control: one allreduce of the library per bucket. Every rank owns every element and applies the optimizer to the
// whole bucket, so nothing is distributed afterwards. The library chooses the algorithm and with it the order of the
// sum: the parameters are equal on all ranks, but not equal to those of ring and star.
class AllreduceMachine final : public BucketMachine {
 public:
  struct Options {
    const BucketMap* buckets = nullptr;
    SliceOwner* owner = nullptr;  // owns every bucket as a whole, in the memory whose floats the transport adds
    std::span<float> parameters;  // the parameter vector, in that memory
    AllreduceTransport* transport = nullptr;
    TraceTrack* track = nullptr;  // the track of the thread that drives the machine; null: there is no trace
  };
  // All pointers outlive the machine.
  explicit AllreduceMachine(const Options& options);

  void Submit(int64_t step, int bucket, std::span<const float> gradient) override;
  void OnCompletion(uint64_t operation) override;  // the operation is the bucket
  bool IsReady(int bucket) const override { return !in_flight_[bucket]; }
  bool IsIdle() const override { return submitted_.empty(); }
  InFlight Oldest() const override;
  // Counts the bytes that the cheapest allreduce must move: the library does not tell how many it moves.
  ExchangeCounters counters() const override { return counters_; }

 private:
  void Apply(const InFlight& submitted, std::span<const float> sum);

  const BucketMap& buckets_;
  SliceOwner& owner_;
  const std::span<float> parameters_;
  AllreduceTransport& transport_;
  TraceTrack* const track_;
  std::span<float> sum_;               // the owner's, as long as the parameter vector
  std::vector<bool> in_flight_;        // by bucket
  std::deque<InFlight> submitted_;     // oldest first; at most one entry a bucket
  std::vector<int64_t> submitted_ns_;  // by bucket, if there is a track
  ExchangeCounters counters_;
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_BUCKET_MACHINE_H_
