// The control: one MPI_Allreduce per bucket, the library's own choice of algorithm. Every rank owns every element and
// applies the optimizer to the whole bucket, so nothing is distributed afterwards. The order of the sum is the
// library's: the parameters are equal on all ranks, but not those of ring and star.
#ifndef STARRING_WORKER_EXCHANGE_PEER_ALLREDUCE_MACHINE_H_
#define STARRING_WORKER_EXCHANGE_PEER_ALLREDUCE_MACHINE_H_

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "common/bucket_map.h"
#include "common/trace.h"
#include "worker/exchange/peer/bucket_machine.h"
#include "worker/exchange/peer/slice_owner.h"

namespace starring {

class AllreduceMachine final : public BucketMachine {
 public:
  struct Options {
    const BucketMap* buckets = nullptr;
    SliceOwner* owner = nullptr;  // of every bucket, whole, in host memory
    std::span<float> parameters;  // the parameter vector
    Transport* transport = nullptr;
    TraceTrack* track = nullptr;  // of whoever drives the machine; null: there is no trace
  };
  // All pointers outlive the machine.
  explicit AllreduceMachine(const Options& options);

  void Submit(int64_t step, int bucket, std::span<const float> gradient) override;
  void OnCompletion(Transport::Token token) override;
  bool IsReady(int bucket) const override { return !in_flight_[bucket]; }
  bool IsIdle() const override { return submitted_.empty(); }
  InFlight Oldest() const override;
  // What the cheapest allreduce must move; what the library does move it does not tell.
  ExchangeCounters counters() const override { return counters_; }

 private:
  void Apply(const InFlight& submitted, std::span<const float> sum);

  const BucketMap& buckets_;
  SliceOwner& owner_;
  const std::span<float> parameters_;
  Transport& transport_;
  TraceTrack* const track_;
  std::vector<float> sum_;             // as long as the parameter vector
  std::vector<bool> in_flight_;        // by bucket
  std::deque<InFlight> submitted_;     // oldest first; at most one entry a bucket
  std::vector<int64_t> submitted_ns_;  // by bucket, with a track
  ExchangeCounters counters_;
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_ALLREDUCE_MACHINE_H_
