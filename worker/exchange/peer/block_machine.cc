#include "worker/exchange/peer/block_machine.h"

#include <algorithm>
#include <chrono>

#include "common/arithmetic/reduction_order.h"
#include "common/base/check.h"
#include "common/base/limits.h"

namespace starring {
namespace {

// An operation's number: slot << 32 | phase << 24 | round.
constexpr int kSlotShift = 32;
constexpr int kPhaseShift = 24;
constexpr uint64_t kRoundMask = (uint64_t{1} << kPhaseShift) - 1;

int64_t GroupElements(const BlockMachine::Options& options) {
  const int world_size = options.transport->world_size();
  const int64_t block_elements = ReductionBlockElements(world_size);
  // Packing reads and writes floats, and those of a GPU are out of reach. All ranks have GPUs then, or none has.
  if (!options.owner->own_parameters().empty()) return block_elements;
  const int64_t bucket_elements = options.buckets->bucket_bytes() / static_cast<int64_t>(sizeof(float));
  return std::min(kChunkElementsMax / ChunkElements(world_size) * block_elements, bucket_elements);
}

}  // namespace

int64_t BlockMachine::MessageElementsMax(const Options& options) {
  return GroupElements(options) / options.transport->world_size();
}

BlockMachine::BlockMachine(const Options& options, const Plan& plan)
    : buckets_(*options.buckets),
      owner_(*options.owner),
      parameters_(options.parameters),
      transport_(*options.transport),
      track_(options.track),
      rank_(transport_.rank()),
      world_size_(transport_.world_size()),
      first_tag_(options.first_tag),
      block_elements_(ReductionBlockElements(world_size_)),
      group_elements_(plan.one_block_groups ? block_elements_ : GroupElements(options)),
      apart_begin_(plan.last_block_is_apart ? buckets_.last_block().begin : buckets_.element_count()),
      tag_sets_((transport_.tag_max() + int64_t{1} - first_tag_) / std::max(1, 2 * round_count())),
      groups_(options.groups_in_flight_max > 0 ? options.groups_in_flight_max
                                               : RingBlocksInFlightMax(transport_.world_size())),
      unready_groups_(buckets_.bucket_count(), 0),
      submitted_ns_(track_ == nullptr ? 0 : buckets_.bucket_count(), 0) {
  CHECK_EQ(buckets_.world_size(), world_size_);
  CHECK_EQ(buckets_.element_count(), parameters_.size());
  CHECK_GE(tag_sets_, 1);
  for (size_t slot = 0; slot < groups_.size(); ++slot) {
    Group& group = groups_[slot];
    group.slot = static_cast<int>(slot);
    // The owned chunk's sum arrives here: its place in the parameter vector still has the parameters that the optimizer
    // updates.
    group.scratch = owner_.Allocate(plan.scratch_elements);
    if (group_elements_ > block_elements_) group.packed = owner_.Allocate(group_elements_);
    if (track_ != nullptr) group.posted_ns.resize(4 * round_count());
  }
}

void BlockMachine::Submit(int64_t step, int bucket, std::span<const float> gradient) {
  const ElementRange range = buckets_.bucket(bucket);
  CHECK_EQ(gradient.size(), range.size());
  CHECK_EQ(unready_groups_[bucket], 0) << "bucket " << bucket << " submitted twice without Await";
  if (track_ != nullptr) submitted_ns_[bucket] = TraceNow();
  if (world_size_ == 1) {
    const TraceSpan span(track_, "apply", {.step = step, .bucket = bucket});
    return Apply(step, bucket, {.owned = range, .sum = gradient, .last = {}});
  }
  unready_groups_[bucket] = GroupCount(range);
  // The trainer does not wait for a slot. A group that cannot start now starts when another group has ended
  // (OnCompletion).
  queue_.push_back({.step = step, .bucket = bucket, .gradient = gradient, .next_begin = range.begin});
  StartGroups();
}

void BlockMachine::StartGroups() {
  while (!queue_.empty()) {
    Submitted& head = queue_.front();
    Group* const group = FreeSlotFor(head.next_begin);
    // No later group overtakes this one, not even one of another bucket: all ranks start groups in one order. The
    // argument against deadlock in block_machine.h needs that.
    if (group == nullptr) return;
    const ElementRange range = buckets_.bucket(head.bucket);
    group->used = true;
    group->sequence = started_count_++;
    group->step = head.step;
    group->bucket = head.bucket;
    group->range = {head.next_begin, GroupEnd(head.next_begin, range.end)};
    group->is_packed = group->range.size() > block_elements_;
    group->gradient = head.gradient.data() + (group->range.begin - range.begin);
    group->before_ready = 3 * round_count();
    group->before_free = 4 * round_count();
    ++active_count_;
    head.next_begin = group->range.end;
    if (head.next_begin == range.end) queue_.pop_front();
    StartGroup(*group);
  }
}

int64_t BlockMachine::GroupEnd(int64_t begin, int64_t bucket_end) const {
  const int64_t end = std::min(begin + group_elements_, bucket_end);
  return begin < apart_begin_ ? std::min(end, apart_begin_) : end;
}

int64_t BlockMachine::GroupCount(ElementRange bucket) const {
  const int64_t usual = std::min(bucket.end, apart_begin_) - bucket.begin;
  return (usual + group_elements_ - 1) / group_elements_ + (bucket.end > apart_begin_ ? 1 : 0);
}

BlockMachine::Group* BlockMachine::FreeSlotFor(int64_t begin) {
  // The loop looks at all slots even when a free one is found: a group with the same tags may be in any of them.
  Group* free = nullptr;
  for (Group& group : groups_) {
    if (!group.used) {
      free = &group;
    } else if (TagSetOf(group.range.begin) == TagSetOf(begin)) {
      // This is the same group of the last step, which still sends parameters from its place in the parameter vector,
      // or, with many ranks and few tags, another group. Messages of the two would be taken for each other.
      return nullptr;
    }
  }
  return free;
}

void BlockMachine::OnCompletion(uint64_t operation) {
  Group& group = groups_[operation >> kSlotShift];
  const Operation completed = {.phase = static_cast<Phase>(operation >> kPhaseShift & 0xff),
                               .round = static_cast<int>(operation & kRoundMask)};
  CHECK(group.used);
  --group.before_free;
  TraceOperation(group, completed);
  Advance(group, completed);
  if (TrainerNeeds(completed) && --group.before_ready == 0) CountReady(group);
  // Nothing is done with `group` after this: StartGroups may use the slot for another group at once.
  if (group.before_free == 0) {
    group.used = false;
    --active_count_;
    StartGroups();
  }
}

// The sends of the gather phase are left out: they read parameters, which the trainer only reads as well.
bool BlockMachine::TrainerNeeds(Operation operation) const { return operation.phase != Phase::kGatherSend; }

void BlockMachine::CountReady(const Group& group) {
  if (--unready_groups_[group.bucket] > 0 || track_ == nullptr) return;
  track_->Add({.name = "exchange",
               .kind = TraceEvent::Kind::kFlight,
               .begin_ns = submitted_ns_[group.bucket],
               .end_ns = TraceNow(),
               .labels = {.step = group.step, .bucket = group.bucket}});
}

void BlockMachine::TraceOperation(Group& group, Operation operation) {
  if (track_ == nullptr) return;
  const bool sends = operation.phase == Phase::kReduceSend || operation.phase == Phase::kGatherSend;
  track_->Add({.name = sends ? "send" : "receive",
               .kind = TraceEvent::Kind::kFlight,
               .begin_ns = PostedNs(group, operation),
               .end_ns = TraceNow(),
               .labels = {.step = group.step, .bucket = group.bucket, .peer = PeerOf(operation)}});
}

void BlockMachine::Add(const Group& group, std::span<const float> data, std::span<float> sum) {
  const TraceSpan span(track_, "sum", {.step = group.step, .bucket = group.bucket});
  owner_.Add(data, sum);
}

void BlockMachine::AddContribution(const Group& group, int chunk, std::span<float> sum) {
  const TraceSpan span(track_, "sum", {.step = group.step, .bucket = group.bucket});
  ForEachPiece(group, chunk, [&](const Piece& piece) {
    owner_.Add(Gradient(group, piece.range), sum.subspan(piece.begin_at, piece.range.size()));
  });
}

void BlockMachine::ApplyOwnChunk(const Group& group, const Parts& parts) {
  const TraceSpan span(track_, "apply", {.step = group.step, .bucket = group.bucket});
  ForEachPiece(group, rank_, [&](const Piece& piece) {
    const size_t size = piece.range.size();
    Apply(group.step, group.bucket,
          {.owned = piece.range,
           .sum = parts.sum.subspan(piece.begin_at, size),
           .last = parts.last.empty() ? Gradient(group, piece.range) : parts.last.subspan(piece.begin_at, size)});
    if (!group.is_packed) return;
    std::ranges::copy(Parameters(piece.range), Landing(group, rank_).begin() + piece.begin_at);
  });
}

void BlockMachine::ApplySum(const Group& group, ElementRange owned, std::span<const float> sum) {
  const TraceSpan span(track_, "apply", {.step = group.step, .bucket = group.bucket});
  Apply(group.step, group.bucket, {.owned = owned, .sum = sum, .last = {}});
}

void BlockMachine::Apply(int64_t step, int bucket, const Update& update) {
  // In a last block of fewer elements than there are ranks, some chunks are empty. Their messages travel all the same,
  // without bytes: every rank counts the same operations.
  if (update.owned.size() == 0) return;
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
  const Group* oldest = nullptr;
  for (const Group& group : groups_) {
    if (group.used && (oldest == nullptr || group.sequence < oldest->sequence)) oldest = &group;
  }
  // If buckets are queued, a group is in flight: StartGroups stops only for want of a slot.
  CHECK(oldest != nullptr);
  return {.step = oldest->step, .bucket = oldest->bucket};
}

void BlockMachine::ForEachPiece(const Group& group, int chunk, absl::FunctionRef<void(const Piece&)> visit) const {
  int64_t begin_at = 0;
  for (int64_t begin = group.range.begin; begin < group.range.end; begin += block_elements_) {
    const ElementRange block = {begin, std::min(begin + block_elements_, group.range.end)};
    const ElementRange range = RingChunk(block, chunk, world_size_);
    visit({.range = range, .begin_at = begin_at});
    begin_at += range.size();
  }
}

// Packed, the group's elements are chunk after chunk. Only the last block may be short.
ElementRange BlockMachine::PackedChunk(const Group& group, int chunk) const {
  const int64_t of_whole_blocks = group.range.size() / block_elements_ * ChunkElements(world_size_);
  const ElementRange of_last = RingChunk({0, group.range.size() % block_elements_}, chunk, world_size_);
  return {chunk * of_whole_blocks + of_last.begin, (chunk + 1) * of_whole_blocks + of_last.end};
}

std::span<float> BlockMachine::Landing(const Group& group, int chunk) const {
  if (!group.is_packed) return Parameters(RingChunk(group.range, chunk, world_size_));
  const ElementRange range = PackedChunk(group, chunk);
  return group.packed.subspan(range.begin, range.size());
}

std::span<const float> BlockMachine::Contribution(const Group& group, int chunk) {
  if (!group.is_packed) return Gradient(group, RingChunk(group.range, chunk, world_size_));
  const std::span<float> message = Landing(group, chunk);
  ForEachPiece(group, chunk, [&](const Piece& piece) {
    std::ranges::copy(Gradient(group, piece.range), message.begin() + piece.begin_at);
  });
  return message;
}

void BlockMachine::TakeParameters(const Group& group, int chunk) {
  if (!group.is_packed) return;
  const std::span<const float> message = Landing(group, chunk);
  ForEachPiece(group, chunk, [&](const Piece& piece) {
    std::ranges::copy(message.subspan(piece.begin_at, piece.range.size()), Parameters(piece.range).begin());
  });
}

std::span<float> BlockMachine::Parameters(ElementRange range) const {
  return parameters_.subspan(range.begin, range.size());
}

std::span<const float> BlockMachine::Gradient(const Group& group, ElementRange range) const {
  return {group.gradient + (range.begin - group.range.begin), static_cast<size_t>(range.size())};
}

void BlockMachine::Send(Group& group, Operation operation, std::span<const float> data) {
  if (track_ != nullptr) PostedNs(group, operation) = TraceNow();
  counters_.bytes_sent += data.size_bytes();
  transport_.PostSend(PeerOf(operation), Tag(group, operation), std::as_bytes(data), TokenOf(group, operation));
}

void BlockMachine::Receive(Group& group, Operation operation, std::span<float> data) {
  if (track_ != nullptr) PostedNs(group, operation) = TraceNow();
  counters_.bytes_received += data.size_bytes();
  transport_.PostReceive(PeerOf(operation), Tag(group, operation), std::as_writable_bytes(data),
                         TokenOf(group, operation));
}

// Every round of a group has a tag of its own, and groups in flight have different ones (FreeSlotFor). When tags are
// used again, by the next step or by another group, each side has posted all messages of the first use before any of
// the second, and messages of one tag match in the order in which they were posted.
int BlockMachine::Tag(const Group& group, Operation operation) const {
  const bool gathers = operation.phase == Phase::kGatherSend || operation.phase == Phase::kGatherReceive;
  return first_tag_ + static_cast<int>(TagSetOf(group.range.begin) * 2 * round_count() + (gathers ? round_count() : 0) +
                                       operation.round);
}

// Groups that are in flight together are neighbours in the vector and have neighbouring numbers.
int64_t BlockMachine::TagSetOf(int64_t begin) const {
  const int64_t bucket_elements = buckets_.bucket_bytes() / static_cast<int64_t>(sizeof(float));
  const int64_t groups_per_bucket = (bucket_elements + group_elements_ - 1) / group_elements_;
  const int64_t in_bucket = begin == apart_begin_ ? groups_per_bucket : begin % bucket_elements / group_elements_;
  return (begin / bucket_elements * groups_per_bucket + in_bucket) % tag_sets_;
}

Transport::Token BlockMachine::TokenOf(const Group& group, Operation operation) {
  return {.poster = this,
          .operation = static_cast<uint64_t>(group.slot) << kSlotShift |
                       static_cast<uint64_t>(operation.phase) << kPhaseShift | static_cast<uint64_t>(operation.round)};
}

}  // namespace starring
