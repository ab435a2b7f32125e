// The ring: a reduce-scatter, the last step of each sum, and an allgather, as one pipeline over groups of reduction
// blocks. It adds a bucket of the parameter vector, whose sum the optimizer turns into parameters, and an array of
// PyTorch, whose sum is divided and rounded: RingSink says which.
//
// Words. There are N ranks. A *sum* is an array of every rank, cut from a block's begin in reduction blocks of N ring
// chunks (common/arithmetic/reduction_order.h); rank c owns chunk c of each. A *group* is as many consecutive blocks of
// a sum as a message holds chunks of. *Chunk c of a group* is chunk c of each of its blocks: one message. A *hop* is
// one message to the right neighbour, rank + 1.
//
//   reduce   Chunk c starts at rank c + 1 with that rank's contribution and travels right. A rank that receives the
//            partial sum adds its own contribution and passes the sum on. N - 1 hops bring it to rank c: contributions
//            c + 1, c + 2, ..., c are added left to right, the chain that reduction_order.h states.
//   finish   Rank c adds its own contribution, the last one, and makes the result.
//   gather   The result of chunk c travels right from rank c, N - 1 hops.
//
// Rank r receives in reduce hop h chunk r - 2 - h (and sends r - 1 - h), in gather hop h chunk r - 1 - h (and sends
// r - h), all modulo N.
//
// Where bytes are. A contribution of float32 is sent from the sink's array. A partial sum arrives at its result's place
// if results have memory of their own, which no rank but the owner still needs; otherwise in memory of the group. A
// result arrives at its place. So no byte is copied, with two exceptions. The chunks of several blocks are *packed* in
// memory of the group. And a neighbour that has mapped this rank's memory (ring_memory.h) writes into that: the message
// has no bytes.
//
// Cost of L elements: every rank sends and receives 2 (N - 1) messages a group, together 2 L (N - 1) / N elements,
// which is the least an allreduce can do (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", 2009), and adds L (N - 1) / N elements. 2 (N - 1) messages follow one after the other.
//
// Groups start in one order on all ranks, a bounded number at a time, and take their *slots* in turn. A slot is memory
// and a set of tags, so it means the same group everywhere. There is no deadlock: the oldest unfinished group is in
// flight wherever its sum has been submitted, because only older groups could hold its slot, and because a sum waits
// for older ones of the same elements alone. A hop needs the hop before it at the left neighbour, and nothing else.
//
// A ring never waits, starts no thread and reads no clock but for traces. Thread safety: one thread at a time.
#ifndef STARRING_COMMON_REDUCE_RING_H_
#define STARRING_COMMON_REDUCE_RING_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/base/copy_array.h"
#include "common/base/element_range.h"
#include "common/metrics/trace.h"
#include "common/reduce/ring_memory.h"
#include "common/transport/transport.h"

namespace starring {

// One sum, as every rank submits it.
struct RingSum {
  int64_t number = 0;                    // the sink's name for it; no other sum that is not ready has it
  ElementRange elements;                 // from a block's begin on
  int64_t result_bytes = sizeof(float);  // of an element of the result
  // Sums with different keys have different tags, as far as there are tags. So messages of sums on which ranks disagree
  // are not taken for each other.
  uint64_t tag_key = 0;
  TraceLabels labels;
};

// The arrays of a rank, and the operations on floats. All calls but Allocate come from Ring's own methods.
//
// CopyContribution, Add, Finish and Copy may only enqueue their work, as on the stream of a GPU. Later work sees what
// earlier work has written. Copies may be put off until Complete, in their order. Until then no other work uses the
// memory where they write, or writes where they read. The ring calls Complete before it sends bytes that work writes,
// before it receives into memory that work uses, and before OnReady.
//
// REQUIRES: a sink that enqueues is not given to a ring with shared memory, into which the ring copies at once.
class RingSink {
 public:
  // `count` floats where the sink computes: in host memory, or a GPU's. Valid as long as the sink.
  virtual std::span<float> Allocate(int64_t count) = 0;
  // This rank's elements of `range`, if they are float32 and may be sent from where they are; otherwise empty.
  virtual std::span<const float> Contribution(const RingSum& sum, ElementRange range) = 0;
  // out = this rank's elements of `range`, as float32.
  virtual void CopyContribution(const RingSum& sum, ElementRange range, std::span<float> out) = 0;
  // partial += this rank's elements of `range`.
  virtual void Add(const RingSum& sum, ElementRange range, std::span<float> partial) = 0;
  // `range` is owned by this rank, and `partial` has all contributions but its own: adds that and stores the result at
  // its place. `partial` may be overwritten. `range` is not empty.
  virtual void Finish(const RingSum& sum, ElementRange range, std::span<float> partial) = 0;
  // The place of the result of `range`: sum.result_bytes an element.
  virtual std::span<std::byte> Result(const RingSum& sum, ElementRange range) = 0;
  // The first bytes of `to` become those of `from`: results of packed messages are copied so. REQUIRES: `to` is not
  // shorter, and they do not overlap.
  virtual void Copy(std::span<const std::byte> from, std::span<std::byte> to) { CopyArray(from, to); }
  // Waits until all enqueued work has ended. A sink that enqueues nothing has nothing to do here.
  virtual void Complete() {}

  // An operation of the ring is complete.
  virtual void OnProgress() {}
  // The contribution may be overwritten, and the result is complete.
  virtual void OnReady(const RingSum& sum) = 0;
  // Nothing of the sum is in flight any more; comes after OnReady. The ring does not touch the sum again.
  virtual void OnDone(const RingSum& sum) = 0;

 protected:
  ~RingSink() = default;
};

class Ring final : public Transport::Poster {
 public:
  struct Options {
    Transport* transport = nullptr;
    RingSink* sink = nullptr;
    int first_tag = 0;  // the ring uses tags from here on
    // A message has the chunks of so many blocks as fit, at least of one.
    int64_t message_bytes_max = 0;
    int64_t sum_elements_max = 0;  // of the longest sum; memory for longer groups is not allocated
    // Whether contributions are float32, and results float32 in other memory: then groups of one block need no memory
    // for partial sums but their own. Otherwise CopyContribution widens, and results replace contributions.
    bool results_are_apart = true;
    int groups_in_flight_max = 0;  // 0: as many as limits.h allows
    TraceTrack* track = nullptr;   // of the thread that drives the ring; null: there is no trace
    // This rank's memory and its right neighbour's, which this process has mapped; both or none. Without, messages have
    // the elements.
    std::optional<RingMemory> own;
    std::optional<RingMemory> right;
  };
  // REQUIRES: the objects to which the options refer outlive the ring; the transport's world is the ring, of two ranks
  // or more.
  explicit Ring(const Options& options);

  // Begins a sum. All ranks submit their sums in one order. Does not wait. REQUIRES: it is not empty.
  void Submit(const RingSum& sum);
  void OnCompletion(uint64_t operation) override;

  // The sum that has been in flight longest; null if none is.
  const RingSum* Oldest() const { return sums_.empty() ? nullptr : &sums_.front().sum; }
  // Elements in messages since the ring was made, in either direction.
  int64_t bytes_sent() const { return bytes_sent_; }
  int64_t bytes_received() const { return bytes_received_; }

 private:
  enum class Phase { kReduceSend, kReduceReceive, kGatherSend, kGatherReceive };
  struct Operation {
    Phase phase = Phase::kReduceSend;
    int hop = 0;
  };
  struct InFlight {
    RingSum sum;
    int64_t next_begin = 0;    // where the next group begins
    int64_t unready = 0;       // groups
    int64_t unfinished = 0;    // groups
    int64_t submitted_ns = 0;  // with a track
  };
  struct Group {
    int slot = 0;
    bool is_used = false;
    std::list<InFlight>::iterator in_flight;
    ElementRange range;
    bool is_packed = false;          // it has more than one block
    std::span<float> scratch;        // for the owned chunk's partial sum, or for all chunks: see AllocateMemory
    int before_ready = 0;            // operations
    int before_free = 0;             // operations
    std::vector<int64_t> posted_ns;  // by phase and hop, with a track
  };

  void AllocateMemory();
  void StartGroups();
  // Whether an older sum still sends from the place of the results of `next`.
  bool IsStillSent(std::list<InFlight>::iterator next) const;
  void StartGroup(Group& group);
  void SendContribution(Group& group);
  void OnReduceReceived(Group& group, int hop);
  void FinishOwnChunk(Group& group, std::span<float> partial);
  void OnGatherReceived(Group& group, int hop);
  void Release(Group& group);
  void CountReady(InFlight& in_flight);

  // Calls visit(range of the sum, its first element in the message) for the chunk's part of each block.
  void ForEachPiece(const Group& group, int chunk, absl::FunctionRef<void(ElementRange, int64_t)> visit) const;
  // Where the chunk is in memory for all chunks of the group.
  ElementRange PackedChunk(const Group& group, int chunk) const;
  // Where the partial sum of `chunk` arrives in reduce hop `hop`.
  std::span<float> Partial(const Group& group, int hop, int chunk) const;
  // Where the chunk's result arrives, and leaves: at its place, or packed in memory of the group.
  std::span<std::byte> Landing(const Group& group, int chunk) const;
  // Whether the result of gather hop `hop` may arrive from the start on. Otherwise a send still reads its landing.
  bool ArrivesAtAnyTime(const Group& group, int hop) const;

  void Send(Group& group, Operation operation, std::span<const std::byte> data);
  void Receive(Group& group, Operation operation, std::span<std::byte> data);
  int TagOf(const Group& group, Operation operation) const;
  Transport::Token TokenOf(const Group& group, Operation operation);
  int64_t& PostedNs(Group& group, Operation operation) {
    return group.posted_ns[static_cast<size_t>(operation.phase) * hop_count() + operation.hop];
  }
  void TraceFlight(Group& group, Operation operation);

  bool is_shared() const { return options_.own.has_value(); }
  int hop_count() const { return rank_count_ - 1; }
  // The chunk `distance` places to the left. REQUIRES: 0 <= distance <= N.
  int Left(int distance) const { return (rank_ - distance + rank_count_) % rank_count_; }

  const Options options_;
  Transport& transport_;
  RingSink& sink_;
  const int rank_;
  const int rank_count_;
  const int64_t block_elements_;
  const int64_t group_elements_;  // of all but the last group of a sum
  std::vector<Group> groups_;     // by slot
  int64_t tag_sets_ = 1;
  int next_slot_ = 0;
  std::list<InFlight> sums_;                 // oldest first
  std::list<InFlight>::iterator unstarted_;  // the first of which a group has not started
  int64_t bytes_sent_ = 0;
  int64_t bytes_received_ = 0;
};

}  // namespace starring

#endif  // STARRING_COMMON_REDUCE_RING_H_
