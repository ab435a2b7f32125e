// The ring of ranks that map each other's GPU memory: each pulls from its left neighbour, rank - 1, and from no other.
// Its chunks, its owners and the order of its additions are those of the ring over messages (common/reduce/ring.h), and
// so are its bits.
//
// Words. A bucket is cut in reduction blocks of N chunks; *chunk c of a bucket* is chunk c of each of its blocks, which
// rank c owns. A round of a bucket has 2 (N - 1) *hops*, each of which is work of the GPU on one chunk of the bucket:
//
//   reduce   N - 1 hops. Hop h of rank r adds its gradient to what its left neighbour has of chunk r - 2 - h: a
//            gradient in hop 0, a partial sum later. The sum takes the place of the chunk's parameters in this rank's
//            memory, which no rank needs any more: only the owner reads old parameters. The last hop is about the own
//            chunk, whose sum the optimizer turns into parameters.
//   gather   N - 1 hops. Hop h copies the left neighbour's parameters of chunk r - 1 - h.
//
// Pace. The board in memory of the host has a count for each bucket and rank. A rank counts its *signals*: one when its
// gradient is complete, and one when the GPU has ended a hop. Hop k waits for signal k + 1 of the left neighbour's
// round. No GPU waits for another rank. With --gpu_waits=graph there is no such machine: the same signals are words of
// gpu/gpu_flags.h, for which GPUs wait in the order of their streams.
//
// Why no rank writes what its right neighbour still reads. The gradients and partial sums that the neighbour reads
// become parts of results. This rank gathers those results, so it writes there after they were read. The parameters
// that the neighbour gathers may be read after this rank's round has ended. So this rank's next round first waits for
// all signals of the neighbour's last one.
//
// Cost: 2 (N - 1) hops follow one after the other, each with a wake-up of two threads. A rank reads 2 (N - 1) / N of
// the bucket from its neighbour. A hop is one kernel.
#ifndef STARRING_WORKER_EXCHANGE_PEER_GPU_RING_MACHINE_H_
#define STARRING_WORKER_EXCHANGE_PEER_GPU_RING_MACHINE_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "common/job/bucket_map.h"
#include "common/metrics/trace.h"
#include "common/transport/memory/host_board.h"
#include "common/transport/memory/host_transport.h"
#include "worker/exchange/peer/bucket_machine.h"
#include "worker/exchange/peer/gpu/ring_hops.h"

namespace starring {

class GpuRingMachine final : public BucketMachine {
 public:
  // The board has a count for each rank and bucket.
  static int BoardBuckets(int bucket_count, int rank_count) { return bucket_count * rank_count; }

  struct Options {
    const BucketMap* buckets = nullptr;
    RingHops* hops = nullptr;
    std::span<const float> own_gradient;  // where gradients are submitted
    HostBoard* board = nullptr;           // of BoardBuckets; its counts are zero when the first rank submits
    HostTransport* transport = nullptr;   // to which the board is attached
    TraceTrack* track = nullptr;          // of the thread that drives the machine; null: there is no trace
  };
  // All pointers and arrays outlive the machine. REQUIRES: two ranks or more.
  explicit GpuRingMachine(const Options& options);

  void Submit(int64_t step, int bucket, std::span<const float> gradient) override;
  void OnCompletion(uint64_t operation) override;
  bool IsReady(int bucket) const override { return !state_[bucket].in_flight; }
  bool IsIdle() const override { return submitted_.empty(); }
  InFlight Oldest() const override;
  ExchangeCounters counters() const override { return counters_; }

 private:
  struct Bucket {
    bool in_flight = false;
    int64_t step = 0;
    int64_t signals_before = 0;  // of each rank, in earlier rounds
    int hop = 0;                 // of 2 (N - 1)
    int64_t submitted_ns = 0;
    int64_t hop_began_ns = 0;
  };

  int64_t bytes(int bucket, int chunk) const { return bytes_[static_cast<size_t>(bucket) * rank_count_ + chunk]; }
  const std::atomic<int64_t>& SignalsOf(int bucket, int rank) const {
    return board_.arrivals(bucket * rank_count_ + rank);
  }
  void Signal(int bucket, int listener);
  void WaitForLeft(int bucket);
  void BeginHop(int bucket);
  void EndHop(int bucket);
  void FinishBucket(int bucket);

  const Options options_;
  const BucketMap& buckets_;
  RingHops& hops_;
  HostBoard& board_;
  HostTransport& transport_;
  const int rank_;
  const int rank_count_;
  const RingSchedule schedule_;
  std::vector<int64_t> bytes_;      // by bucket and chunk
  std::vector<Bucket> state_;       // by bucket
  std::deque<InFlight> submitted_;  // oldest first; at most one entry a bucket
  ExchangeCounters counters_;
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_GPU_RING_MACHINE_H_
