// The star of processes that share memory: all of them map every worker's gradients and one vector of parameters, so a
// contribution is read where its worker has written it, and no answer is sent. The workers own the parameters, or
// servers do (server/shard/shard_rank.h).
//
// Words: host_board.h's, and these. A bucket is cut in slices, each of which an owner has: ranks have OwnerMap::Ranges,
// servers OwnerMap::ShardRanges.
//
//   submit   A worker counts its arrival.
//   update   When all workers have arrived, each owner adds the contributions to its slice in the order of
//            reduction_order.h, applies the optimizer and writes the new parameters in their place; then it counts its
//            update. A rank works in pieces, several threads on each, and returns to the transport after each.
//   ready    When all owners have updated, the bucket is ready on all workers.
//
// Writes: the parameters of a bucket are written between its last arrival and its last update. No worker reads them
// then, because it submits a bucket after its last use of the parameters in a step (gradient_exchange.h). A worker
// writes the next step's gradient after the last update, when no owner reads the old one any more.
//
// On GPUs. Where the ranks map each other's GPU memory (gpu/gpu_memory.h), the arrays are there, and a vector of
// parameters is on each GPU. The board is the host's all the same, so no GPU waits for another rank: an owner begins
// its kernel, and counts its update when the kernel has ended. No thread waits for it with the machine's lock.
//
// Cost: with N workers, each owner reads its slice of N gradients and moves no other byte. Two wake-ups follow one
// after the other: the last worker wakes the owners, and the last owner wakes the workers.
//
// There is no deadlock: an arrival waits for nothing, and an update for arrivals alone.
#ifndef STARRING_WORKER_EXCHANGE_PEER_MEMORY_MACHINE_H_
#define STARRING_WORKER_EXCHANGE_PEER_MEMORY_MACHINE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "common/arithmetic/reduction_order.h"
#include "common/job/bucket_map.h"
#include "common/metrics/trace.h"
#include "common/reduce/owner_map.h"
#include "common/transport/memory/host_arrays.h"
#include "common/transport/memory/host_board.h"
#include "common/transport/memory/host_transport.h"
#include "worker/exchange/peer/bucket_machine.h"
#include "worker/exchange/slice_owner.h"

namespace starring {

class MemoryMachine final : public BucketMachine {
 public:
  struct Options {
    const BucketMap* buckets = nullptr;
    SliceOwner* owner = nullptr;  // owns this rank's slice of every bucket; of no use with servers
    HostArrays arrays;
    HostBoard* board = nullptr;          // its counts are zero when the first rank submits
    HostTransport* transport = nullptr;  // to which the board is attached
    SumOrder sum_order = SumOrder::kChain;
    int micro_batches = 0;        // JobSpec::micro_batches
    int server_count = 0;         // the last ranks of the world; 0: the ranks are the owners
    int update_threads = 1;       // of a piece; does not change the bits
    TraceTrack* track = nullptr;  // the track of the thread that drives the machine; null: there is no trace
  };
  // All pointers and arrays outlive the machine. REQUIRES: two processes or more.
  explicit MemoryMachine(const Options& options);

  // A gradient that is not in own_gradients, in its place, is copied there. On a GPU it is there.
  void Submit(int64_t step, int bucket, std::span<const float> gradient) override;
  void SubmitNode(int64_t step, int bucket, int node, std::span<const float> gradient) override;
  void OnCompletion(uint64_t operation) override;
  bool IsReady(int bucket) const override { return !state_[bucket].in_flight; }
  bool IsIdle() const override { return submitted_.empty(); }
  InFlight Oldest() const override;
  // Has the bytes that a star without shared memory would have moved.
  ExchangeCounters counters() const override { return counters_; }

 private:
  struct Bucket {
    bool in_flight = false;
    int64_t step = 0;
    int64_t submit_count = 0;
    int64_t updated_end = 0;  // of the slice, in the parameter vector: what is before it has been updated
    int64_t submitted_ns = 0;
    int64_t update_began_ns = 0;  // of an owner that works by itself
  };

  // This rank's; empty if servers are the owners.
  ElementRange SliceOf(int bucket) const;
  void RingOwners(int bucket);
  void BeginUpdate(int bucket);
  void UpdatePiece(int bucket);
  void EndUpdate(int bucket);
  void UpdateRange(const Bucket& state, int bucket, ElementRange range);
  void UpdateRun(const Bucket& state, int bucket, ElementRange run, int first_rank, std::span<const std::byte*> terms);
  void FinishUpdate(int bucket);
  void FinishBucket(int bucket);
  std::span<const float> Contribution(int contributor, ElementRange range) const {
    return options_.arrays.gradients[contributor].subspan(range.begin, range.size());
  }

  const Options options_;
  const BucketMap& buckets_;
  HostBoard& board_;
  HostTransport& transport_;
  const int rank_;
  const int worker_count_;
  const OwnerMap owners_;
  std::vector<Bucket> state_;       // by bucket
  std::deque<InFlight> submitted_;  // oldest first; at most one entry a bucket
  std::vector<int> leaves_;         // by contributor, with micro-batches
  ExchangeCounters counters_;
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_MEMORY_MACHINE_H_
