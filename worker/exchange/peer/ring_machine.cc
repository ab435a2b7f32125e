#include "worker/exchange/peer/ring_machine.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/arithmetic/reduction_order.h"
#include "common/check.h"
#include "common/limits.h"

namespace starring {
namespace {

// An operation's number: slot << 32 | phase << 24 | hop.
constexpr int kSlotShift = 32;
constexpr int kPhaseShift = 24;
constexpr uint64_t kHopMask = (uint64_t{1} << kPhaseShift) - 1;

// At least two blocks, which keep both directions of a link busy, however many ranks there are.
int BlocksInFlightMax(int blocks_in_flight_max, int world_size) {
  if (blocks_in_flight_max > 0) return blocks_in_flight_max;
  // A block has N - 1 hops to reduce and as many to gather, each a send and a receive.
  const int operations_per_block = 4 * std::max(1, world_size - 1);
  return std::max(2, kRingOperationsInFlightMax / operations_per_block);
}

}  // namespace

RingMachine::RingMachine(const Options& options)
    : buckets_(*options.buckets),
      owner_(*options.owner),
      parameters_(options.parameters),
      transport_(*options.transport),
      track_(options.track),
      rank_(transport_.rank()),
      world_size_(transport_.world_size()),
      first_tag_(options.first_tag),
      active_(BlocksInFlightMax(options.blocks_in_flight_max, world_size_)),
      unready_blocks_(buckets_.bucket_count(), 0),
      submitted_ns_(track_ == nullptr ? 0 : buckets_.bucket_count(), 0) {
  CHECK_EQ(buckets_.world_size(), world_size_);
  CHECK_EQ(buckets_.element_count(), parameters_.size());
  for (Active& active : active_) {
    // The owned chunk's sum arrives here: its place in the parameter vector still has the parameters that the optimizer
    // updates.
    active.sum = owner_.Allocate(kChunkElements);
    if (track_ != nullptr) active.posted_ns.resize(4 * std::max(0, world_size_ - 1));
  }
}

void RingMachine::Submit(int64_t step, int bucket, std::span<const float> gradient) {
  const ElementRange range = buckets_.bucket(bucket);
  CHECK_EQ(gradient.size(), range.size());
  CHECK_EQ(unready_blocks_[bucket], 0) << "bucket " << bucket << " submitted twice without Await";
  if (track_ != nullptr) submitted_ns_[bucket] = TraceNow();
  if (world_size_ == 1) return Apply(step, bucket, {.owned = range, .sum = gradient, .last = {}});
  const int64_t block_elements = ReductionBlockElements(world_size_);
  unready_blocks_[bucket] = (range.size() + block_elements - 1) / block_elements;
  // The trainer does not wait for a slot. What cannot start now starts when a block has ended (OnCompletion).
  queue_.push_back({.step = step, .bucket = bucket, .gradient = gradient, .next_begin = range.begin});
  StartBlocks();
}

void RingMachine::StartBlocks() {
  while (!queue_.empty()) {
    Submitted& head = queue_.front();
    Active* const active = FreeSlotFor(head.next_begin);
    // No later block overtakes this one, not even one of another bucket: all ranks start blocks in one order, which is
    // what the argument against deadlock in ring_machine.h needs.
    if (active == nullptr) return;
    const ElementRange range = buckets_.bucket(head.bucket);
    active->used = true;
    active->sequence = started_count_++;
    active->step = head.step;
    active->bucket = head.bucket;
    active->block = {head.next_begin, std::min(head.next_begin + ReductionBlockElements(world_size_), range.end)};
    active->gradient = head.gradient.data() + (active->block.begin - range.begin);
    ++active_count_;
    head.next_begin = active->block.end;
    if (head.next_begin == range.end) queue_.pop_front();
    StartBlock(*active);
  }
}

RingMachine::Active* RingMachine::FreeSlotFor(int64_t begin) {
  // The loop looks at all slots even when a free one is found: the block's last step may be in any of them.
  Active* free = nullptr;
  for (Active& active : active_) {
    if (!active.used) {
      free = &active;
    } else if (active.block.begin == begin) {
      // The same block of the last step still sends parameters to the right neighbour. Its tags and its place in the
      // parameter vector would be used twice.
      return nullptr;
    }
  }
  return free;
}

void RingMachine::StartBlock(Active& active) {
  const int hops = world_size_ - 1;
  // The trainer may go on after all receives and the one send that reads the gradient. The other sends read parameters,
  // which the trainer only reads as well.
  active.before_ready = 2 * hops + 1;
  active.before_free = 4 * hops;
  // All receives of partial sums are posted before the first send. A message for which no receive is posted would be
  // copied by MPI, or would wait.
  for (int hop = 0; hop < hops; ++hop) {
    const ElementRange range = Chunk(active, Left(2 + hop));
    const bool owned = hop == hops - 1;
    Receive(active, Phase::kReduceReceive, hop, owned ? active.sum.first(range.size()) : Parameters(range));
  }
  const ElementRange first = Chunk(active, Left(1));
  Send(active, Phase::kReduceSend, 0, Gradient(active, first));
  // No partial sum passes through this chunk's place in the parameter vector, because its reduction starts here. So its
  // new parameters may arrive at any time.
  Receive(active, Phase::kGatherReceive, 0, Parameters(first));
}

void RingMachine::OnCompletion(uint64_t operation) {
  Active& active = active_[operation >> kSlotShift];
  const auto phase = static_cast<Phase>(operation >> kPhaseShift & 0xff);
  const int hop = static_cast<int>(operation & kHopMask);
  CHECK(active.used);
  --active.before_free;
  TraceOperation(active, phase, hop);
  bool counts_for_ready = true;
  switch (phase) {
    case Phase::kReduceSend:
      counts_for_ready = hop == 0;
      // The new parameters overwrite the partial sum, so their receive must not be posted before the sum has been sent.
      if (hop > 0) Receive(active, Phase::kGatherReceive, hop, Parameters(Chunk(active, Left(1 + hop))));
      break;
    case Phase::kReduceReceive:
      OnReduceReceived(active, hop);
      break;
    case Phase::kGatherSend:
      counts_for_ready = false;
      break;
    case Phase::kGatherReceive:
      OnGatherReceived(active, hop);
      break;
  }
  if (counts_for_ready && --active.before_ready == 0) CountReady(active);
  // Nothing is done with `active` after this: StartBlocks may use the slot for another block at once.
  if (active.before_free == 0) {
    active.used = false;
    --active_count_;
    StartBlocks();
  }
}

void RingMachine::CountReady(const Active& active) {
  if (--unready_blocks_[active.bucket] > 0 || track_ == nullptr) return;
  track_->Add({.name = "exchange",
               .kind = TraceEvent::Kind::kFlight,
               .begin_ns = submitted_ns_[active.bucket],
               .end_ns = TraceNow(),
               .labels = {.step = active.step, .bucket = active.bucket}});
}

void RingMachine::TraceOperation(Active& active, Phase phase, int hop) {
  if (track_ == nullptr) return;
  const bool sends = phase == Phase::kReduceSend || phase == Phase::kGatherSend;
  track_->Add(
      {.name = sends ? "send" : "receive",
       .kind = TraceEvent::Kind::kFlight,
       .begin_ns = PostedNs(active, phase, hop),
       .end_ns = TraceNow(),
       .labels = {.step = active.step, .bucket = active.bucket, .peer = sends ? (rank_ + 1) % world_size_ : Left(1)}});
}

void RingMachine::OnReduceReceived(Active& active, int hop) {
  const int hops = world_size_ - 1;
  const ElementRange range = Chunk(active, Left(2 + hop));
  // After N - 1 hops the chunk is this rank's own, since Left(N) is the rank itself.
  if (hop < hops - 1) {
    {
      const TraceSpan span(track_, "sum", {.step = active.step, .bucket = active.bucket});
      owner_.Add(Gradient(active, range), Parameters(range));
    }
    // Add has ended when it returns, so MPI may read the sum from its place. Nothing is received there until this send
    // has completed (OnCompletion).
    Send(active, Phase::kReduceSend, hop + 1, Parameters(range));
    return;
  }
  const std::span<float> sum = active.sum.first(range.size());
  Apply(active.step, active.bucket, {.owned = range, .sum = sum, .last = Gradient(active, range)});
  Send(active, Phase::kGatherSend, 0, Parameters(range));
}

void RingMachine::OnGatherReceived(Active& active, int hop) {
  const int hops = world_size_ - 1;
  // The right neighbour owns the chunk of the last hop and has its parameters already.
  if (hop < hops - 1) Send(active, Phase::kGatherSend, hop + 1, Parameters(Chunk(active, Left(1 + hop))));
}

void RingMachine::Apply(int64_t step, int bucket, const Update& update) {
  // In a last block of fewer elements than there are ranks, some chunks are empty. Their messages travel all the same,
  // without bytes: every rank counts the same operations.
  if (update.owned.size() == 0) return;
  const TraceSpan span(track_, "apply", {.step = step, .bucket = bucket});
  const auto start = std::chrono::steady_clock::now();
  owner_.Apply({.step = step,
                .bucket = bucket,
                .range = update.owned,
                .sum = update.sum,
                .last = update.last,
                .parameters = Parameters(update.owned)});
  counters_.optimizer_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

BucketMachine::InFlight RingMachine::Oldest() const {
  const Active* oldest = nullptr;
  for (const Active& active : active_) {
    if (active.used && (oldest == nullptr || active.sequence < oldest->sequence)) oldest = &active;
  }
  // If buckets are queued, a block is in flight: StartBlocks stops only for want of a slot.
  CHECK(oldest != nullptr);
  return {.step = oldest->step, .bucket = oldest->bucket};
}

ElementRange RingMachine::Chunk(const Active& active, int chunk) const {
  return RingChunk(active.block, chunk, world_size_);
}

std::span<float> RingMachine::Parameters(ElementRange range) const {
  return parameters_.subspan(range.begin, range.size());
}

std::span<const float> RingMachine::Gradient(const Active& active, ElementRange range) const {
  return {active.gradient + (range.begin - active.block.begin), static_cast<size_t>(range.size())};
}

void RingMachine::Send(Active& active, Phase phase, int hop, std::span<const float> data) {
  if (track_ != nullptr) PostedNs(active, phase, hop) = TraceNow();
  // Tags of gather hops follow those of reduce hops. Both sides of a message count hops alike: this rank's hop h is the
  // right neighbour's hop h.
  const int gather = phase == Phase::kGatherSend ? world_size_ - 1 : 0;
  counters_.bytes_sent += data.size_bytes();
  transport_.PostSend((rank_ + 1) % world_size_, Tag(active, gather + hop), std::as_bytes(data),
                      TokenOf(active, phase, hop));
}

void RingMachine::Receive(Active& active, Phase phase, int hop, std::span<float> data) {
  if (track_ != nullptr) PostedNs(active, phase, hop) = TraceNow();
  const int gather = phase == Phase::kGatherReceive ? world_size_ - 1 : 0;
  counters_.bytes_received += data.size_bytes();
  transport_.PostReceive(Left(1), Tag(active, gather + hop), std::as_writable_bytes(data), TokenOf(active, phase, hop));
}

// Every hop of every block has a tag of its own, which tells the messages of one step apart. Messages of the next step
// have the same tags, but both sides post them later, and messages of one tag match in the order in which they were
// posted. Wrapping round at the largest tag is harmless, because far fewer blocks are in flight.
int RingMachine::Tag(const Active& active, int hop) const {
  const int64_t hops = 2 * (world_size_ - 1);
  const int64_t blocks = (transport_.tag_max() + int64_t{1} - first_tag_) / hops;
  const int64_t block = active.block.begin / ReductionBlockElements(world_size_);
  return first_tag_ + static_cast<int>(block % blocks * hops + hop);
}

Transport::Token RingMachine::TokenOf(const Active& active, Phase phase, int hop) {
  const uint64_t slot = &active - active_.data();
  return {.poster = this,
          .operation = slot << kSlotShift | static_cast<uint64_t>(phase) << kPhaseShift | static_cast<uint64_t>(hop)};
}

}  // namespace starring
