// The common part of the machines of the co-located star over messages: direct_machine.h and share_machine.h.
//
// Words. There are N ranks. A reduction block is cut in N ring chunks (common/arithmetic/reduction_order.h); rank c
// owns chunk c. A *group* is the unit that a machine works on: as many consecutive blocks of a bucket as a message of
// 128 KiB holds chunks of. It is one block with up to four ranks, and N x 128 KiB with any N, but at the end of a
// bucket. *Chunk c of a group* is chunk c of each of its blocks: one message. (A machine may treat the vector's last
// block apart.)
//
// A group has two phases: *reduce* brings all contributions to chunk c to rank c, which adds them and applies the
// optimizer; *gather* brings the new parameters of chunk c from rank c to all ranks. In each phase a rank sends and
// receives N - 1 messages, one in each *round* 0, 1, ..., N - 2; a machine decides the receiver and the content of a
// round's message. A message is named by the group, the phase and the round, which are also its tag.
//
// The chunks of a group of one block are sent from gradient and parameters, and received there. Those of several blocks
// are *packed*: messages leave from and arrive in memory of the slot, and are copied from the gradient, and to the
// parameters. That costs two copies of the bucket a step at most.
//
// Groups start in the order in which they were submitted, a bounded number at a time. Each group in flight has a *slot*
// with scratch memory for the sum of the chunk that this rank owns, and for packed messages.
//
// There is no deadlock between groups: the oldest group that is unfinished on any rank is in flight on every rank that
// has submitted it, because only older groups could hold its slot or its tags, and it needs neither a message nor a
// place of a younger group. A machine must not let a younger group hold what an older one needs; so the limits on what
// is in flight are limits of each group.
#ifndef STARRING_WORKER_EXCHANGE_PEER_BLOCK_MACHINE_H_
#define STARRING_WORKER_EXCHANGE_PEER_BLOCK_MACHINE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/job/bucket_map.h"
#include "common/metrics/trace.h"
#include "common/transport/transport.h"
#include "worker/exchange/peer/bucket_machine.h"
#include "worker/exchange/slice_owner.h"

namespace starring {

// Owns the queue, the slots, the tags, the packing, the counters and the trace; its machines decide what follows from a
// message.
class BlockMachine : public BucketMachine {
 public:
  struct Options {
    const BucketMap* buckets = nullptr;
    SliceOwner* owner = nullptr;  // owns this rank's part of every bucket (OwnerMap::JoinedChunks)
    std::span<float> parameters;  // the parameter vector, in the owner's memory, as gradients are
    Transport* transport = nullptr;
    TraceTrack* track = nullptr;   // the track of the thread that drives the machine; null: there is no trace
    int first_tag = 0;             // the machine uses tags from here on
    int groups_in_flight_max = 0;  // 0: as many as limits.h allows
  };

  void Submit(int64_t step, int bucket, std::span<const float> gradient) final;
  void OnCompletion(uint64_t operation) final;
  bool IsReady(int bucket) const final { return unready_groups_[bucket] == 0; }
  bool IsIdle() const final { return active_count_ == 0 && queue_.empty(); }
  InFlight Oldest() const final;
  ExchangeCounters counters() const final { return counters_; }

 protected:
  enum class Phase { kReduceSend, kReduceReceive, kGatherSend, kGatherReceive };

  // One message of a group, at this end.
  struct Operation {
    Phase phase = Phase::kReduceSend;
    int round = 0;
  };

  // A group in flight.
  struct Group {
    int slot = 0;
    bool used = false;
    int64_t sequence = 0;  // groups in the order in which they started
    int64_t step = 0;
    int bucket = 0;
    ElementRange range;
    bool is_packed = false;           // it has more than one block
    const float* gradient = nullptr;  // the gradient of the group's first element
    std::span<float> scratch;         // Plan::scratch_elements of the owner's memory
    std::span<float> packed;          // as long as the longest group; empty if every group is one block
    int before_ready = 0;             // operations that must complete before the trainer may go on
    int before_free = 0;              // operations that are not complete yet
    std::vector<int64_t> posted_ns;   // by phase and round, with a track
  };

  // The decisions of a machine when it is made.
  struct Plan {
    int64_t scratch_elements = 0;  // of each slot
    // The vector's last block is a group by itself. Not each rank sends and receives in each of its rounds: StartGroup
    // corrects before_ready and before_free.
    bool last_block_is_apart = false;
    bool one_block_groups = false;  // also with more than four ranks; nothing is packed. StartGroup may count as above
  };

  // All pointers of `options` outlive the machine.
  BlockMachine(const Options& options, const Plan& plan);

  // Posts the group's first operations.
  virtual void StartGroup(Group& group) = 0;
  // The operation has completed: posts what may follow. Every operation of a group is posted once: in each phase and
  // round one send and one receive.
  virtual void Advance(Group& group, Operation operation) = 0;
  // The rank at the other end.
  virtual int PeerOf(Operation operation) const = 0;

  const BucketMap& buckets() const { return buckets_; }
  bool IsApart(const Group& group) const { return group.range.begin == apart_begin_; }

  // The elements of the longest message: of Plan::scratch_elements.
  static int64_t MessageElementsMax(const Options& options);

  // The elements of a message with `chunk` of the group.
  int64_t ChunkSize(const Group& group, int chunk) const { return PackedChunk(group, chunk).size(); }
  // Where messages with the chunk's new parameters arrive and leave: at the chunk's place in the parameter vector or,
  // packed, in memory of the slot.
  std::span<float> Landing(const Group& group, int chunk) const;
  // This rank's gradient of the chunk as a message; packed, it is in Landing, which nothing else may use meanwhile.
  std::span<const float> Contribution(const Group& group, int chunk);
  // New parameters of `chunk` are in Landing: they are in the parameter vector on return.
  void TakeParameters(const Group& group, int chunk);

  void Send(Group& group, Operation operation, std::span<const float> data);
  void Receive(Group& group, Operation operation, std::span<float> data);
  // sum += data, in the owner's memory.
  void Add(const Group& group, std::span<const float> data, std::span<float> sum);
  // sum += this rank's gradient of `chunk`.
  void AddContribution(const Group& group, int chunk, std::span<float> sum);
  // Updates the chunk that this rank owns by the sum of two parts of all contributions. Its new parameters are in
  // Landing, too.
  struct Parts {
    std::span<const float> sum;
    std::span<const float> last;  // empty: this rank's own contribution
  };
  void ApplyOwnChunk(const Group& group, const Parts& parts);
  // Updates `owned` by the sum of all contributions.
  void ApplySum(const Group& group, ElementRange owned, std::span<const float> sum);
  std::span<float> Parameters(ElementRange range) const;
  std::span<const float> Gradient(const Group& group, ElementRange range) const;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  int round_count() const { return world_size_ - 1; }
  int slot_count() const { return static_cast<int>(groups_.size()); }
  // The rank, or the chunk, `distance` places to the left or to the right of this rank. REQUIRES: 0 <= distance <= N.
  int Left(int distance) const { return (rank_ - distance + world_size_) % world_size_; }
  int Right(int distance) const { return (rank_ + distance) % world_size_; }

 private:
  // A submitted bucket, some of whose groups have not started.
  struct Submitted {
    int64_t step = 0;
    int bucket = 0;
    std::span<const float> gradient;
    int64_t next_begin = 0;  // where in the parameter vector the next group begins
  };

  // The update of an owned range; the spans are as in ApplyArgs.
  struct Update {
    ElementRange owned;
    std::span<const float> sum;
    std::span<const float> last;
  };

  // A piece of a message: one chunk of one block.
  struct Piece {
    ElementRange range;    // of the parameter vector
    int64_t begin_at = 0;  // its first element in the message
  };
  void ForEachPiece(const Group& group, int chunk, absl::FunctionRef<void(const Piece&)> visit) const;
  // Where the chunk is in Group::packed.
  ElementRange PackedChunk(const Group& group, int chunk) const;
  // Where the group that begins at `begin` in a bucket with that end ends.
  int64_t GroupEnd(int64_t begin, int64_t bucket_end) const;
  int64_t GroupCount(ElementRange bucket) const;

  void StartGroups();
  // A slot for the group that begins at `begin`; null if all are in use, or a group with the same tags is in flight.
  Group* FreeSlotFor(int64_t begin);
  // Whether the operation must be complete before the trainer may write the gradient and read the parameters.
  bool TrainerNeeds(Operation operation) const;
  void CountReady(const Group& group);
  void Apply(int64_t step, int bucket, const Update& update);
  int Tag(const Group& group, Operation operation) const;
  // Which of the sets of tags the group that begins at `begin` uses.
  int64_t TagSetOf(int64_t begin) const;
  Transport::Token TokenOf(const Group& group, Operation operation);
  // When the operation was posted.
  int64_t& PostedNs(Group& group, Operation operation) {
    return group.posted_ns[static_cast<size_t>(operation.phase) * round_count() + operation.round];
  }
  void TraceOperation(Group& group, Operation operation);

  const BucketMap& buckets_;
  SliceOwner& owner_;
  const std::span<float> parameters_;
  Transport& transport_;
  TraceTrack* const track_;
  const int rank_;
  const int world_size_;
  const int first_tag_;
  const int64_t block_elements_;
  const int64_t group_elements_;  // of all but the last group of a bucket
  const int64_t apart_begin_;     // of the last block if it is a group by itself, else past the vector's end
  const int64_t tag_sets_;        // a group uses one of them: two tags a round

  std::deque<Submitted> queue_;  // at most one entry a bucket
  std::vector<Group> groups_;    // by slot
  int active_count_ = 0;
  int64_t started_count_ = 0;
  std::vector<int64_t> unready_groups_;  // by bucket
  std::vector<int64_t> submitted_ns_;    // by bucket, with a track
  ExchangeCounters counters_;
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_BLOCK_MACHINE_H_
