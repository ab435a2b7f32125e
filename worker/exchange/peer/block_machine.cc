#include "worker/exchange/peer/block_machine.h"

#include <algorithm>
#include <chrono>

#include "common/arithmetic/reduction_order.h"
#include "common/check.h"

namespace starring {
namespace {

// An operation's number: slot << 32 | phase << 24 | round.
constexpr int kSlotShift = 32;
constexpr int kPhaseShift = 24;
constexpr uint64_t kRoundMask = (uint64_t{1} << kPhaseShift) - 1;

}  // namespace

BlockMachine::BlockMachine(const Options& options, const Plan& plan)
    : buckets_(*options.buckets),
      owner_(*options.owner),
      parameters_(options.parameters),
      transport_(*options.transport),
      track_(options.track),
      rank_(transport_.rank()),
      world_size_(transport_.world_size()),
      first_tag_(options.first_tag),
      tag_sets_((transport_.tag_max() + int64_t{1} - first_tag_) / std::max(1, 2 * round_count())),
      gradient_sends_(plan.gradient_sends),
      blocks_(options.blocks_in_flight_max > 0 ? options.blocks_in_flight_max : plan.blocks_in_flight_max),
      unready_blocks_(buckets_.bucket_count(), 0),
      submitted_ns_(track_ == nullptr ? 0 : buckets_.bucket_count(), 0) {
  CHECK_EQ(buckets_.world_size(), world_size_);
  CHECK_EQ(buckets_.element_count(), parameters_.size());
  CHECK_GE(tag_sets_, 1);
  for (size_t slot = 0; slot < blocks_.size(); ++slot) {
    Block& block = blocks_[slot];
    block.slot = static_cast<int>(slot);
    // The owned chunk's sum arrives here: its place in the parameter vector still has the parameters that the optimizer
    // updates.
    block.scratch = owner_.Allocate(plan.scratch_elements);
    if (track_ != nullptr) block.posted_ns.resize(4 * round_count());
  }
}

void BlockMachine::Submit(int64_t step, int bucket, std::span<const float> gradient) {
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

void BlockMachine::StartBlocks() {
  while (!queue_.empty()) {
    Submitted& head = queue_.front();
    Block* const block = FreeSlotFor(head.next_begin);
    // No later block overtakes this one, not even one of another bucket: all ranks start blocks in one order, which is
    // what the argument against deadlock in block_machine.h needs.
    if (block == nullptr) return;
    const ElementRange range = buckets_.bucket(head.bucket);
    block->used = true;
    block->sequence = started_count_++;
    block->step = head.step;
    block->bucket = head.bucket;
    block->range = {head.next_begin, std::min(head.next_begin + ReductionBlockElements(world_size_), range.end)};
    block->gradient = head.gradient.data() + (block->range.begin - range.begin);
    block->before_ready = 2 * round_count() + gradient_sends_;
    block->before_free = 4 * round_count();
    ++active_count_;
    head.next_begin = block->range.end;
    if (head.next_begin == range.end) queue_.pop_front();
    StartBlock(*block);
  }
}

BlockMachine::Block* BlockMachine::FreeSlotFor(int64_t begin) {
  // The loop looks at all slots even when a free one is found: a block with the same tags may be in any of them.
  Block* free = nullptr;
  for (Block& block : blocks_) {
    if (!block.used) {
      free = &block;
    } else if (TagSetOf(block.range.begin) == TagSetOf(begin)) {
      // This is the same block of the last step, which still sends parameters from its place in the parameter vector,
      // or, with many ranks and few tags, another block. Messages of the two would be taken for each other.
      return nullptr;
    }
  }
  return free;
}

void BlockMachine::OnCompletion(uint64_t operation) {
  Block& block = blocks_[operation >> kSlotShift];
  const Operation completed = {.phase = static_cast<Phase>(operation >> kPhaseShift & 0xff),
                               .round = static_cast<int>(operation & kRoundMask)};
  CHECK(block.used);
  --block.before_free;
  TraceOperation(block, completed);
  Advance(block, completed);
  if (TrainerNeeds(completed) && --block.before_ready == 0) CountReady(block);
  // Nothing is done with `block` after this: StartBlocks may use the slot for another block at once.
  if (block.before_free == 0) {
    block.used = false;
    --active_count_;
    StartBlocks();
  }
}

// The sends of the gather phase are left out: they read parameters, which the trainer only reads as well.
bool BlockMachine::TrainerNeeds(Operation operation) const {
  if (operation.phase == Phase::kReduceSend) return operation.round < gradient_sends_;
  return operation.phase != Phase::kGatherSend;
}

void BlockMachine::CountReady(const Block& block) {
  if (--unready_blocks_[block.bucket] > 0 || track_ == nullptr) return;
  track_->Add({.name = "exchange",
               .kind = TraceEvent::Kind::kFlight,
               .begin_ns = submitted_ns_[block.bucket],
               .end_ns = TraceNow(),
               .labels = {.step = block.step, .bucket = block.bucket}});
}

void BlockMachine::TraceOperation(Block& block, Operation operation) {
  if (track_ == nullptr) return;
  const bool sends = operation.phase == Phase::kReduceSend || operation.phase == Phase::kGatherSend;
  track_->Add({.name = sends ? "send" : "receive",
               .kind = TraceEvent::Kind::kFlight,
               .begin_ns = PostedNs(block, operation),
               .end_ns = TraceNow(),
               .labels = {.step = block.step, .bucket = block.bucket, .peer = PeerOf(operation)}});
}

void BlockMachine::Add(const Block& block, std::span<const float> data, std::span<float> sum) {
  const TraceSpan span(track_, "sum", {.step = block.step, .bucket = block.bucket});
  owner_.Add(data, sum);
}

std::span<const float> BlockMachine::OwnContribution(const Block& block) const {
  return Gradient(block, Chunk(block, rank_));
}

void BlockMachine::ApplyOwnChunk(const Block& block, const Parts& parts) {
  Apply(block.step, block.bucket, {.owned = Chunk(block, rank_), .sum = parts.sum, .last = parts.last});
}

void BlockMachine::Apply(int64_t step, int bucket, const Update& update) {
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

BucketMachine::InFlight BlockMachine::Oldest() const {
  const Block* oldest = nullptr;
  for (const Block& block : blocks_) {
    if (block.used && (oldest == nullptr || block.sequence < oldest->sequence)) oldest = &block;
  }
  // If buckets are queued, a block is in flight: StartBlocks stops only for want of a slot.
  CHECK(oldest != nullptr);
  return {.step = oldest->step, .bucket = oldest->bucket};
}

ElementRange BlockMachine::Chunk(const Block& block, int chunk) const {
  return RingChunk(block.range, chunk, world_size_);
}

std::span<float> BlockMachine::Parameters(ElementRange range) const {
  return parameters_.subspan(range.begin, range.size());
}

std::span<const float> BlockMachine::Gradient(const Block& block, ElementRange range) const {
  return {block.gradient + (range.begin - block.range.begin), static_cast<size_t>(range.size())};
}

void BlockMachine::Send(Block& block, Operation operation, std::span<const float> data) {
  if (track_ != nullptr) PostedNs(block, operation) = TraceNow();
  counters_.bytes_sent += data.size_bytes();
  transport_.PostSend(PeerOf(operation), Tag(block, operation), std::as_bytes(data), TokenOf(block, operation));
}

void BlockMachine::Receive(Block& block, Operation operation, std::span<float> data) {
  if (track_ != nullptr) PostedNs(block, operation) = TraceNow();
  counters_.bytes_received += data.size_bytes();
  transport_.PostReceive(PeerOf(operation), Tag(block, operation), std::as_writable_bytes(data),
                         TokenOf(block, operation));
}

// Every round of a block has a tag of its own, and blocks in flight have different ones (FreeSlotFor). When tags are
// used again, by the next step or by another block, each side has posted all messages of the first use before any of
// the second, and messages of one tag match in the order in which they were posted.
int BlockMachine::Tag(const Block& block, Operation operation) const {
  const bool gathers = operation.phase == Phase::kGatherSend || operation.phase == Phase::kGatherReceive;
  return first_tag_ + static_cast<int>(TagSetOf(block.range.begin) * 2 * round_count() + (gathers ? round_count() : 0) +
                                       operation.round);
}

int64_t BlockMachine::TagSetOf(int64_t begin) const { return begin / ReductionBlockElements(world_size_) % tag_sets_; }

Transport::Token BlockMachine::TokenOf(const Block& block, Operation operation) {
  return {.poster = this,
          .operation = static_cast<uint64_t>(block.slot) << kSlotShift |
                       static_cast<uint64_t>(operation.phase) << kPhaseShift | static_cast<uint64_t>(operation.round)};
}

}  // namespace starring
