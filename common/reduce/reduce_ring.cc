#include "common/reduce/reduce_ring.h"

#include <algorithm>

#include "common/arithmetic/reduction_order.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/reduce/element_sum.h"

namespace starring {
namespace {

// An operation's number: slot << 32 | phase << 24 | hop.
constexpr int kSlotShift = 32;
constexpr int kPhaseShift = 24;
constexpr uint64_t kHopMask = (uint64_t{1} << kPhaseShift) - 1;

// As many sets of tags as tell reductions apart; more would tell them no better.
constexpr int64_t kTagSetsMax = 1 << 18;

}  // namespace

ReduceRing::ReduceRing(const Options& options)
    : ReduceMachine(options.transport),
      options_(options),
      block_elements_(ReductionBlockElements(worker_count())),
      blocks_(worker_count() > 1 ? RingBlocksInFlightMax(worker_count()) : 0) {
  CHECK_EQ(options.own.has_value(), options.right.has_value());
  for (Block& block : blocks_) {
    block.partials = AlignedFloats(is_shared() ? ChunkElements(worker_count()) : block_elements_);
  }
}

void ReduceRing::Start(const Reduction& reduction) {
  if (reduction.head.count == 0) return;
  Expect(reduction.number, (reduction.head.count + block_elements_ - 1) / block_elements_);
  waiting_.push_back({.reduction = reduction});
  StartBlocks();
}

// Slots are used in turn, although another may be free earlier: so a slot means the same block on all ranks, and with
// it a tag.
void ReduceRing::StartBlocks() {
  while (!waiting_.empty() && !blocks_[next_slot_].is_used) {
    Waiting& head = waiting_.front();
    const int slot = next_slot_;
    Block& block = blocks_[slot];
    next_slot_ = (next_slot_ + 1) % static_cast<int>(blocks_.size());
    block.is_used = true;
    block.reduction = head.reduction;
    block.range = {head.next_begin, std::min(head.next_begin + block_elements_, head.reduction.head.count)};
    block.missing = 4 * hop_count();
    const int64_t tags_per_set = tags_per_slot() * std::ssize(blocks_);
    const int64_t sets = std::min((int64_t{transport().tag_max()} + 1 - kFirstElementTag) / tags_per_set, kTagSetsMax);
    block.first_tag = kFirstElementTag + static_cast<int>(HeadTagNumber(head.reduction.head, sets) * tags_per_set) +
                      slot * tags_per_slot();
    head.next_begin = block.range.end;
    if (head.next_begin == head.reduction.head.count) waiting_.pop_front();
    StartBlock(slot);
  }
}

void ReduceRing::StartBlock(int slot) {
  Block& block = blocks_[slot];
  // All receives are posted before the first send: a message without one is copied.
  for (int hop = 0; hop < hop_count(); ++hop) {
    Receive(slot, {.phase = Phase::kReduceReceive, .hop = hop},
            std::as_writable_bytes(Partial(slot, hop, Left(2 + hop))));
    Receive(slot, {.phase = Phase::kGatherReceive, .hop = hop}, Elements(block, Left(1 + hop)));
  }
  const int first = Left(1);
  std::span<const std::byte> message = Elements(block, first);
  if (block.reduction.head.type != ElementType::kFloat32) {
    const std::span<float> widened = Partial(slot, hop_count(), first);
    Widen(block.reduction.head.type, message.data(), widened);
    message = std::as_bytes(widened);
  }
  Send(slot, {.phase = Phase::kReduceSend, .hop = 0}, message);
}

void ReduceRing::Advance(uint64_t operation) {
  const int slot = static_cast<int>(operation >> kSlotShift);
  const auto phase = static_cast<Phase>(operation >> kPhaseShift & 0xff);
  const int hop = static_cast<int>(operation & kHopMask);
  Block& block = blocks_[slot];
  CHECK(block.is_used);
  if (phase == Phase::kReduceReceive) OnReduceReceived(slot, hop);
  if (phase == Phase::kGatherReceive) OnGatherReceived(slot, hop);
  if (--block.missing > 0) return;
  block.is_used = false;
  Complete(block.reduction.number);
  StartBlocks();
}

void ReduceRing::OnReduceReceived(int slot, int hop) {
  Block& block = blocks_[slot];
  const ReductionHead& head = block.reduction.head;
  const int chunk = Left(2 + hop);
  const std::span<float> sum = Partial(slot, hop, chunk);
  const std::span<std::byte> own = Elements(block, chunk);
  AddElements(head.type, own.data(), sum);
  if (hop < hop_count() - 1) {
    Send(slot, {.phase = Phase::kReduceSend, .hop = hop + 1}, std::as_bytes(sum));
    return;
  }
  // After N - 1 hops the chunk is this rank's own, since Left(N) is the rank itself.
  Finish(head.result(), sum, own.data());
  Send(slot, {.phase = Phase::kGatherSend, .hop = 0}, own);
}

void ReduceRing::OnGatherReceived(int slot, int hop) {
  const std::span<std::byte> elements = Elements(blocks_[slot], Left(1 + hop));
  if (is_shared()) std::ranges::copy(options_.own->Sum(slot, hop).first(elements.size()), elements.begin());
  // The right neighbour owns the chunk of the last hop and has its sum already.
  if (hop < hop_count() - 1) Send(slot, {.phase = Phase::kGatherSend, .hop = hop + 1}, elements);
}

std::span<std::byte> ReduceRing::Elements(const Block& block, int chunk) const {
  const ElementRange in_block = RingChunk({0, block.range.size()}, chunk, worker_count());
  const int64_t bytes = ElementBytes(block.reduction.head.type);
  return {block.reduction.data + (block.range.begin + in_block.begin) * bytes,
          static_cast<size_t>(in_block.size() * bytes)};
}

std::span<float> ReduceRing::Partial(int slot, int hop, int chunk) {
  Block& block = blocks_[slot];
  const int64_t size = RingChunk({0, block.range.size()}, chunk, worker_count()).size();
  if (!is_shared()) return block.partials.span().subspan(hop * ChunkElements(worker_count()), size);
  if (hop == hop_count()) return block.partials.span().first(size);
  return {reinterpret_cast<float*>(options_.own->Partial(slot, hop).data()), static_cast<size_t>(size)};
}

void ReduceRing::Send(int slot, Operation operation, std::span<const std::byte> data) {
  const bool gathers = operation.phase == Phase::kGatherSend;
  if (is_shared()) {
    const RingMemory& right = *options_.right;
    std::ranges::copy(data, (gathers ? right.Sum(slot, operation.hop) : right.Partial(slot, operation.hop)).begin());
    data = {};
  }
  transport().PostSend((rank() + 1) % worker_count(), TagOf(slot, operation), data, TokenOf(slot, operation));
}

void ReduceRing::Receive(int slot, Operation operation, std::span<std::byte> data) {
  if (is_shared()) data = {};
  transport().PostReceive(Left(1), TagOf(slot, operation), data, TokenOf(slot, operation));
}

int ReduceRing::TagOf(int slot, Operation operation) const {
  const bool gathers = operation.phase == Phase::kGatherSend || operation.phase == Phase::kGatherReceive;
  return blocks_[slot].first_tag + (gathers ? hop_count() : 0) + operation.hop;
}

Transport::Token ReduceRing::TokenOf(int slot, Operation operation) {
  return {.poster = this,
          .operation = static_cast<uint64_t>(slot) << kSlotShift |
                       static_cast<uint64_t>(operation.phase) << kPhaseShift | static_cast<uint64_t>(operation.hop)};
}

}  // namespace starring
