// The ring: partial sums travel from rank to rank, and the sums likewise.
//
// Words are those of common/arithmetic/reduction_order.h, for the array of one reduction instead of the parameter
// vector: it is cut from its start in reduction blocks of N ring chunks, and rank c owns chunk c of each. A *hop* is
// one message of one chunk to the right neighbour, rank + 1.
//
//   reduce   Chunk c starts at rank c + 1, whose elements travel right. A rank that receives the partial sum adds its
//            own elements and passes the sum on. After N - 1 hops rank c adds its own elements and divides.
//   gather   The sum of chunk c travels right from rank c, N - 1 hops.
//
// Rank r receives in reduce hop h chunk r - 2 - h (and sends r - 1 - h), in gather hop h chunk r - 1 - h (and sends
// r - h), all modulo N. Partial sums are float32 whatever the elements are, in memory of the block. A sum arrives at
// its place in the array: it depends on what the rank has sent from there.
//
// Cost of L elements: every rank sends and receives 2 L (N - 1) / N elements and adds L (N - 1) / N; 2 (N - 1) messages
// follow one after the other. Blocks overlap, a bounded number at a time, and start in one order on all ranks, so there
// is no deadlock: the oldest unfinished block is in flight wherever its reduction has begun, and a hop needs the hop
// before it at the left neighbour, and nothing else.
#ifndef STARRING_COMMON_REDUCE_REDUCE_RING_H_
#define STARRING_COMMON_REDUCE_REDUCE_RING_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "common/base/element_range.h"
#include "common/base/memory.h"
#include "common/reduce/reduce_machine.h"
#include "common/reduce/reduction.h"
#include "common/reduce/ring_memory.h"

namespace starring {

class ReduceRing final : public ReduceMachine {
 public:
  struct Options {
    Transport* transport = nullptr;
    // This rank's memory and its right neighbour's, which this process has mapped; both or none. Without, messages have
    // the elements.
    std::optional<RingMemory> own;
    std::optional<RingMemory> right;
  };
  // What the options refer to outlives the machine.
  explicit ReduceRing(const Options& options);

 private:
  // A reduction, some of whose blocks have not started.
  struct Waiting {
    Reduction reduction;
    int64_t next_begin = 0;
  };
  // A block in flight.
  struct Block {
    bool is_used = false;
    Reduction reduction;
    ElementRange range;  // of the reduction
    int first_tag = 0;
    int missing = 0;         // operations
    AlignedFloats partials;  // by hop, a chunk each; with shared memory that of hop N - 1 alone
  };
  enum class Phase { kReduceSend, kReduceReceive, kGatherSend, kGatherReceive };
  struct Operation {
    Phase phase = Phase::kReduceSend;
    int hop = 0;
  };

  void Start(const Reduction& reduction) override;
  void Advance(uint64_t operation) override;

  void StartBlocks();
  void StartBlock(int slot);
  void OnReduceReceived(int slot, int hop);
  void OnGatherReceived(int slot, int hop);
  void Send(int slot, Operation operation, std::span<const std::byte> data);
  void Receive(int slot, Operation operation, std::span<std::byte> data);
  int TagOf(int slot, Operation operation) const;
  Transport::Token TokenOf(int slot, Operation operation);
  // The block's elements of `chunk`, in the array.
  std::span<std::byte> Elements(const Block& block, int chunk) const;
  // Where the partial sum of `chunk` arrives in reduce hop `hop`; hop N - 1: the first message, widened.
  std::span<float> Partial(int slot, int hop, int chunk);

  int hop_count() const { return worker_count() - 1; }
  int tags_per_slot() const { return 2 * hop_count(); }
  // The rank, or the chunk, `distance` places to the left. REQUIRES: 0 <= distance <= N.
  int Left(int distance) const { return (rank() - distance + worker_count()) % worker_count(); }

  bool is_shared() const { return options_.own.has_value(); }

  const Options options_;
  const int64_t block_elements_;
  std::vector<Block> blocks_;    // by slot
  int next_slot_ = 0;            // slots are used in turn
  std::deque<Waiting> waiting_;  // oldest first
};

}  // namespace starring

#endif  // STARRING_COMMON_REDUCE_REDUCE_RING_H_
