// A ring's reduce-scatter, optimizer and allgather as one pipeline over reduction blocks.
//
// Words. There are N ranks; every rank sends to its right neighbour (rank + 1) and receives from its left one. A
// reduction block is cut in N ring chunks (common/arithmetic/reduction_order.h); rank c owns chunk c. A *hop* is one
// message of one chunk.
//
//   reduce   Chunk c starts at rank c + 1 with that rank's gradient and travels right. Each rank that receives the
//            partial sum adds its own gradient and passes the sum on. N - 1 hops bring it to rank c: contributions
//            c + 1, c + 2, ..., c are added left to right, which is the order that reduction_order.h states.
//   apply    Rank c adds its own gradient, the last one, and applies the optimizer in the same pass over memory.
//   gather   The new parameters of chunk c travel right from rank c, N - 1 hops.
//
// Rank r receives in reduce hop h chunk r - 2 - h (and sends r - 1 - h), in gather hop h chunk r - 1 - h (and sends
// r - h), all modulo N. Reduce hop 0 sends from the gradient. The other hops send from the place where the partial sum
// was received: the chunk's place in the parameter vector, because only the owner still needs the chunk's old
// parameters. The sum of the owned chunk is received in a scratch buffer. So no byte is packed or copied on our side.
//
// Cost per block of L elements: every rank sends and receives 2 (N - 1) messages, together 2 L (N - 1) / N elements,
// which is the least an allreduce can do (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", 2009), and adds L (N - 1) / N elements.
//
// Blocks start in the order in which they were submitted, at most Options::blocks_in_flight_max at a time, which bounds
// requests and scratch memory. There is no deadlock: the oldest block that is unfinished on any rank is in flight on
// every rank that has submitted it, and it needs no younger block.
#ifndef STARRING_WORKER_EXCHANGE_PEER_RING_MACHINE_H_
#define STARRING_WORKER_EXCHANGE_PEER_RING_MACHINE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "common/bucket_map.h"
#include "common/trace.h"
#include "worker/exchange/peer/bucket_machine.h"
#include "worker/exchange/peer/slice_owner.h"

namespace starring {

class RingMachine final : public BucketMachine {
 public:
  struct Options {
    const BucketMap* buckets = nullptr;
    SliceOwner* owner = nullptr;  // owns this rank's RingSlice of every bucket
    std::span<float> parameters;  // the parameter vector, in the owner's memory, as gradients are
    Transport* transport = nullptr;
    TraceTrack* track = nullptr;   // the track of the thread that drives the machine; null: there is no trace
    int first_tag = 0;             // the machine uses tags from here on
    int blocks_in_flight_max = 0;  // 0: as many as limits.h allows operations
  };
  // All pointers outlive the machine.
  explicit RingMachine(const Options& options);

  void Submit(int64_t step, int bucket, std::span<const float> gradient) override;
  void OnCompletion(uint64_t operation) override;
  bool IsReady(int bucket) const override { return unready_blocks_[bucket] == 0; }
  bool IsIdle() const override { return active_count_ == 0 && queue_.empty(); }
  InFlight Oldest() const override;
  ExchangeCounters counters() const override { return counters_; }

 private:
  enum class Phase { kReduceSend, kReduceReceive, kGatherSend, kGatherReceive };

  // A submitted bucket, some of whose blocks have not started.
  struct Submitted {
    int64_t step = 0;
    int bucket = 0;
    std::span<const float> gradient;
    int64_t next_begin = 0;  // where in the parameter vector the next block begins
  };

  // A block in flight.
  struct Active {
    bool used = false;
    int64_t sequence = 0;  // blocks in the order they were started
    int64_t step = 0;
    int bucket = 0;
    ElementRange block;
    const float* gradient = nullptr;  // the gradient of the block's first element
    std::span<float> sum;             // scratch for the owned chunk
    int before_ready = 0;             // operations that must complete before the trainer may go on
    int before_free = 0;              // operations not complete yet
    std::vector<int64_t> posted_ns;   // by phase and hop, with a track
  };

  // The update of an owned chunk; the spans are as in ApplyArgs.
  struct Update {
    ElementRange owned;
    std::span<const float> sum;
    std::span<const float> last;
  };

  ElementRange Chunk(const Active& active, int chunk) const;
  std::span<float> Parameters(ElementRange range) const;
  std::span<const float> Gradient(const Active& active, ElementRange range) const;
  int Tag(const Active& active, int hop) const;
  Transport::Token TokenOf(const Active& active, Phase phase, int hop);

  // The rank or chunk `distance` places to the left of this rank.
  int Left(int distance) const { return ((rank_ - distance) % world_size_ + world_size_) % world_size_; }

  void StartBlocks();
  // A slot for the block that begins at `begin`; null if all are in use, or the block's last step still is in flight.
  Active* FreeSlotFor(int64_t begin);
  void StartBlock(Active& active);
  void Send(Active& active, Phase phase, int hop, std::span<const float> data);
  void Receive(Active& active, Phase phase, int hop, std::span<float> data);
  void OnReduceReceived(Active& active, int hop);
  void Apply(int64_t step, int bucket, const Update& update);
  void OnGatherReceived(Active& active, int hop);

  // When the operation was posted, and what has happened since.
  int64_t& PostedNs(Active& active, Phase phase, int hop) {
    return active.posted_ns[static_cast<int>(phase) * (world_size_ - 1) + hop];
  }
  void TraceOperation(Active& active, Phase phase, int hop);
  void CountReady(const Active& active);

  const BucketMap& buckets_;
  SliceOwner& owner_;
  const std::span<float> parameters_;
  Transport& transport_;
  TraceTrack* const track_;
  const int rank_;
  const int world_size_;
  const int first_tag_;

  std::deque<Submitted> queue_;  // at most one entry a bucket
  std::vector<Active> active_;
  int active_count_ = 0;
  int64_t started_count_ = 0;
  std::vector<int64_t> unready_blocks_;  // by bucket
  std::vector<int64_t> submitted_ns_;    // likewise, with a track
  ExchangeCounters counters_;
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_RING_MACHINE_H_
