#include "common/reduce/ring.h"

#include <algorithm>
#include <iterator>

#include "common/arithmetic/reduction_order.h"
#include "common/base/check.h"
#include "common/base/copy_array.h"
#include "common/base/limits.h"

namespace starring {
namespace {

// An operation's number: slot << 32 | phase << 24 | hop.
constexpr int kSlotShift = 32;
constexpr int kPhaseShift = 24;
constexpr uint64_t kHopMask = (uint64_t{1} << kPhaseShift) - 1;

// The most sets of tags. More sets would not distinguish sums any better.
constexpr int64_t kTagSetsMax = 1 << 18;

int64_t GroupElements(const Ring::Options& options) {
  const int rank_count = options.transport->world_size();
  const int64_t block_elements = ReductionBlockElements(rank_count);
  const int64_t blocks = std::max<int64_t>(options.message_bytes_max / ChunkBytesFor(rank_count), 1);
  // A group longer than the longest sum would only take more memory.
  const int64_t blocks_of_sum = (options.sum_elements_max + block_elements - 1) / block_elements;
  return block_elements * std::min(blocks, std::max<int64_t>(blocks_of_sum, 1));
}

}  // namespace

Ring::Ring(const Options& options)
    : options_(options),
      transport_(*options.transport),
      sink_(*options.sink),
      rank_(transport_.rank()),
      rank_count_(transport_.world_size()),
      block_elements_(ReductionBlockElements(rank_count_)),
      group_elements_(GroupElements(options)),
      unstarted_(sums_.end()) {
  CHECK_GE(rank_count_, 2);
  CHECK_EQ(options.own.has_value(), options.right.has_value());
  // The places of a RingMemory have one block's chunk each.
  CHECK(!is_shared() || group_elements_ == block_elements_);
  const int64_t tags = int64_t{transport_.tag_max()} + 1 - options.first_tag;
  const int64_t wanted =
      options.groups_in_flight_max > 0 ? options.groups_in_flight_max : RingBlocksInFlightMax(rank_count_);
  // A slot needs a tag for each hop of both phases.
  const int64_t slots = std::min<int64_t>(wanted, tags / (2 * hop_count()));
  CHECK_GE(slots, 1) << "too few tags";
  tag_sets_ = std::clamp<int64_t>(tags / (2 * hop_count() * slots), 1, kTagSetsMax);
  groups_.resize(slots);
  for (int64_t slot = 0; slot < slots; ++slot) {
    groups_[slot].slot = static_cast<int>(slot);
    // A hop of either phase is a send and a receive.
    if (options_.track != nullptr) groups_[slot].posted_ns.resize(4 * hop_count());
  }
  AllocateMemory();
}

// Partial sums need memory for one chunk, the owned one, if all others arrive where their results will. Packed groups,
// and sums whose results replace contributions, need memory for all chunks. Shared memory has it already.
void Ring::AllocateMemory() {
  if (is_shared()) return;
  const bool is_for_all_chunks = group_elements_ > block_elements_ || !options_.results_are_apart;
  for (Group& group : groups_) {
    group.scratch = sink_.Allocate(is_for_all_chunks ? group_elements_ : ChunkElements(rank_count_));
  }
}

void Ring::Submit(const RingSum& sum) {
  CHECK_GT(sum.elements.size(), 0);
  CHECK_EQ(sum.elements.begin % block_elements_, 0);
  const int64_t groups = (sum.elements.size() + group_elements_ - 1) / group_elements_;
  sums_.push_back({.sum = sum,
                   .next_begin = sum.elements.begin,
                   .unready = groups,
                   .unfinished = groups,
                   .submitted_ns = options_.track == nullptr ? 0 : TraceNow()});
  if (unstarted_ == sums_.end()) unstarted_ = std::prev(sums_.end());
  StartGroups();
}

// Slots are used in turn, although another may be free earlier: see the header.
void Ring::StartGroups() {
  while (unstarted_ != sums_.end() && !groups_[next_slot_].is_used && !IsStillSent(unstarted_)) {
    Group& group = groups_[next_slot_];
    next_slot_ = (next_slot_ + 1) % static_cast<int>(groups_.size());
    InFlight& in_flight = *unstarted_;
    group.is_used = true;
    group.in_flight = unstarted_;
    group.range = {in_flight.next_begin, std::min(in_flight.next_begin + group_elements_, in_flight.sum.elements.end)};
    group.is_packed = group.range.size() > block_elements_;
    // The sends of the gather phase are left out: they read results, which the sink's user only reads as well. So are
    // the sends of partial sums.
    // All receives count, and the send of the own contribution, whose array may be overwritten afterwards.
    group.before_ready = 2 * hop_count() + 1;
    group.before_free = 4 * hop_count();
    in_flight.next_begin = group.range.end;
    if (in_flight.next_begin == in_flight.sum.elements.end) ++unstarted_;
    StartGroup(group);
  }
}

// A sum is ready before the sends of its results have ended. The right neighbour may take them late, when the left one
// has begun the next sum of the same elements: its partial sums would arrive where the sends still read.
bool Ring::IsStillSent(std::list<InFlight>::iterator next) const {
  if (is_shared() || !options_.results_are_apart) return false;
  const ElementRange range = next->sum.elements;
  return std::any_of(sums_.begin(), std::list<InFlight>::const_iterator(next), [&](const InFlight& older) {
    return older.sum.elements.begin < range.end && range.begin < older.sum.elements.end;
  });
}

void Ring::StartGroup(Group& group) {
  // Receives are posted before the first send. A message for which no receive is posted would be copied, or would wait.
  for (int hop = 0; hop < hop_count(); ++hop) {
    Receive(group, {.phase = Phase::kReduceReceive, .hop = hop},
            std::as_writable_bytes(Partial(group, hop, Left(2 + hop))));
    if (ArrivesAtAnyTime(group, hop)) {
      Receive(group, {.phase = Phase::kGatherReceive, .hop = hop}, Landing(group, Left(1 + hop)));
    }
  }
  SendContribution(group);
}

void Ring::SendContribution(Group& group) {
  const RingSum& sum = group.in_flight->sum;
  const Operation operation = {.phase = Phase::kReduceSend, .hop = 0};
  const int chunk = Left(1);
  if (!group.is_packed) {
    const ElementRange range = RingChunk(group.range, chunk, rank_count_);
    const std::span<const float> own = range.size() > 0 ? sink_.Contribution(sum, range) : std::span<const float>();
    if (!own.empty() || range.size() == 0) return Send(group, operation, std::as_bytes(own));
  }
  // The neighbour's memory takes the copy at once.
  const ElementRange packed = PackedChunk(group, chunk);
  const std::span<float> message = is_shared() ? options_.right->PartialFloats(group.slot, 0).first(packed.size())
                                               : group.scratch.subspan(packed.begin, packed.size());
  ForEachPiece(group, chunk, [&](ElementRange range, int64_t at) {
    sink_.CopyContribution(sum, range, message.subspan(at, range.size()));
  });
  sink_.Complete();
  Send(group, operation, std::as_bytes(message));
}

void Ring::OnCompletion(uint64_t operation) {
  Group& group = groups_[operation >> kSlotShift];
  const Operation completed = {.phase = static_cast<Phase>(operation >> kPhaseShift & 0xff),
                               .hop = static_cast<int>(operation & kHopMask)};
  CHECK(group.is_used);
  sink_.OnProgress();
  --group.before_free;
  if (options_.track != nullptr) TraceFlight(group, completed);
  bool counts = true;
  switch (completed.phase) {
    case Phase::kReduceSend:
      if (!ArrivesAtAnyTime(group, completed.hop)) {
        Receive(group, {.phase = Phase::kGatherReceive, .hop = completed.hop}, Landing(group, Left(1 + completed.hop)));
      }
      counts = completed.hop == 0;
      break;
    case Phase::kReduceReceive:
      OnReduceReceived(group, completed.hop);
      break;
    case Phase::kGatherSend:
      counts = false;
      break;
    case Phase::kGatherReceive:
      OnGatherReceived(group, completed.hop);
      break;
  }
  if (counts && --group.before_ready == 0) CountReady(*group.in_flight);
  if (group.before_free == 0) Release(group);
}

void Ring::CountReady(InFlight& in_flight) {
  if (--in_flight.unready > 0) return;
  sink_.Complete();
  AddFlight(options_.track, "exchange", in_flight.submitted_ns, in_flight.sum.labels);
  sink_.OnReady(in_flight.sum);
}

// Nothing is done with `group` after this: StartGroups may use the slot for another group at once.
void Ring::Release(Group& group) {
  const std::list<InFlight>::iterator in_flight = group.in_flight;
  // The next group's partial sums arrive where the results of this one are copied from. Those of a ready sum have been
  // copied.
  if (group.is_packed && in_flight->unready > 0) sink_.Complete();
  group.is_used = false;
  if (--in_flight->unfinished == 0) {
    const RingSum sum = in_flight->sum;
    sums_.erase(in_flight);
    sink_.OnDone(sum);
  }
  StartGroups();
}

void Ring::OnReduceReceived(Group& group, int hop) {
  const RingSum& sum = group.in_flight->sum;
  const int chunk = Left(2 + hop);
  const std::span<float> partial = Partial(group, hop, chunk);
  // After N - 1 hops the chunk is this rank's own, since Left(N) is the rank itself.
  if (hop == hop_count() - 1) return FinishOwnChunk(group, partial);
  {
    const TraceSpan span(options_.track, "sum", sum.labels);
    ForEachPiece(group, chunk,
                 [&](ElementRange range, int64_t at) { sink_.Add(sum, range, partial.subspan(at, range.size())); });
    sink_.Complete();
  }
  // The transport reads the sum from its place. Nothing is received there until the send has completed.
  Send(group, {.phase = Phase::kReduceSend, .hop = hop + 1}, std::as_bytes(partial));
}

void Ring::FinishOwnChunk(Group& group, std::span<float> partial) {
  const RingSum& sum = group.in_flight->sum;
  const std::span<std::byte> landing = Landing(group, rank_);
  {
    const TraceSpan span(options_.track, "apply", sum.labels);
    ForEachPiece(group, rank_, [&](ElementRange range, int64_t at) {
      // In a last block of fewer elements than there are ranks, some chunks are empty. Their messages travel all the
      // same, without bytes: every rank counts the same operations.
      if (range.size() == 0) return;
      sink_.Finish(sum, range, partial.subspan(at, range.size()));
      // This part of the packed partial sum is used up, so the result may take its place.
      if (group.is_packed) sink_.Copy(sink_.Result(sum, range), landing.subspan(at * sum.result_bytes));
    });
    sink_.Complete();
  }
  Send(group, {.phase = Phase::kGatherSend, .hop = 0}, landing);
}

void Ring::OnGatherReceived(Group& group, int hop) {
  const RingSum& sum = group.in_flight->sum;
  const int chunk = Left(1 + hop);
  std::span<const std::byte> message = Landing(group, chunk);
  if (is_shared()) message = options_.own->Sum(group.slot, hop).first(message.size());
  // The right neighbour owns the chunk of the last hop and has its result already.
  if (hop < hop_count() - 1) Send(group, {.phase = Phase::kGatherSend, .hop = hop + 1}, message);
  if (!group.is_packed && !is_shared()) return;
  ForEachPiece(group, chunk, [&](ElementRange range, int64_t at) {
    const std::span<std::byte> result = sink_.Result(sum, range);
    sink_.Copy(message.subspan(at * sum.result_bytes, result.size()), result);
  });
}

void Ring::ForEachPiece(const Group& group, int chunk, absl::FunctionRef<void(ElementRange, int64_t)> visit) const {
  int64_t at = 0;
  for (int64_t begin = group.range.begin; begin < group.range.end; begin += block_elements_) {
    const ElementRange range =
        RingChunk({begin, std::min(begin + block_elements_, group.range.end)}, chunk, rank_count_);
    visit(range, at);
    at += range.size();
  }
}

// The group's elements are chunk after chunk. Only the last block may be short.
ElementRange Ring::PackedChunk(const Group& group, int chunk) const {
  const int64_t of_whole_blocks = group.range.size() / block_elements_ * ChunkElements(rank_count_);
  const ElementRange of_last = RingChunk({0, group.range.size() % block_elements_}, chunk, rank_count_);
  return {chunk * of_whole_blocks + of_last.begin, (chunk + 1) * of_whole_blocks + of_last.end};
}

std::span<float> Ring::Partial(const Group& group, int hop, int chunk) const {
  const ElementRange packed = PackedChunk(group, chunk);
  if (is_shared()) return options_.own->PartialFloats(group.slot, hop).first(packed.size());
  const RingSum& sum = group.in_flight->sum;
  if (group.is_packed || !options_.results_are_apart) return group.scratch.subspan(packed.begin, packed.size());
  // The place of the owned chunk's result still has the parameters that the optimizer updates.
  if (chunk == rank_) return group.scratch.first(packed.size());
  const std::span<std::byte> place = sink_.Result(sum, RingChunk(group.range, chunk, rank_count_));
  return {reinterpret_cast<float*>(place.data()), static_cast<size_t>(packed.size())};
}

std::span<std::byte> Ring::Landing(const Group& group, int chunk) const {
  const RingSum& sum = group.in_flight->sum;
  if (!group.is_packed) return sink_.Result(sum, RingChunk(group.range, chunk, rank_count_));
  const ElementRange packed = PackedChunk(group, chunk);
  return std::as_writable_bytes(group.scratch.subspan(packed.begin, packed.size()))
      .first(packed.size() * sum.result_bytes);
}

bool Ring::ArrivesAtAnyTime(const Group& group, int hop) const {
  if (is_shared()) return true;
  if (group.is_packed) return false;
  // Hop 0 is about the chunk whose reduction starts here, so no partial sum arrives in its place. If results replace
  // contributions, that chunk may be sent from there; all others have been added before their result exists.
  return (hop == 0) == options_.results_are_apart;
}

void Ring::Send(Group& group, Operation operation, std::span<const std::byte> data) {
  if (options_.track != nullptr) PostedNs(group, operation) = TraceNow();
  bytes_sent_ += std::ssize(data);
  if (is_shared()) {
    const RingMemory& right = *options_.right;
    const bool gathers = operation.phase == Phase::kGatherSend;
    const std::span<std::byte> place =
        gathers ? right.Sum(group.slot, operation.hop) : right.Partial(group.slot, operation.hop);
    if (data.data() != place.data()) CopyArray(data, place);
    data = {};
  }
  transport_.PostSend((rank_ + 1) % rank_count_, TagOf(group, operation), data, TokenOf(group, operation));
}

void Ring::Receive(Group& group, Operation operation, std::span<std::byte> data) {
  if (options_.track != nullptr) PostedNs(group, operation) = TraceNow();
  bytes_received_ += std::ssize(data);
  if (is_shared()) data = {};
  transport_.PostReceive(Left(1), TagOf(group, operation), data, TokenOf(group, operation));
}

// A slot's tags are used again by its next group. Each side has posted all messages of the first use before any of the
// second, and messages of one tag match in the order in which they were posted.
int Ring::TagOf(const Group& group, Operation operation) const {
  const bool gathers = operation.phase == Phase::kGatherSend || operation.phase == Phase::kGatherReceive;
  const auto set = static_cast<int64_t>(group.in_flight->sum.tag_key % static_cast<uint64_t>(tag_sets_));
  const int64_t slot = set * std::ssize(groups_) + group.slot;
  return options_.first_tag + static_cast<int>((slot * 2 + (gathers ? 1 : 0)) * hop_count()) + operation.hop;
}

Transport::Token Ring::TokenOf(const Group& group, Operation operation) {
  return {.poster = this,
          .operation = static_cast<uint64_t>(group.slot) << kSlotShift |
                       static_cast<uint64_t>(operation.phase) << kPhaseShift | static_cast<uint64_t>(operation.hop)};
}

void Ring::TraceFlight(Group& group, Operation operation) {
  const bool sends = operation.phase == Phase::kReduceSend || operation.phase == Phase::kGatherSend;
  TraceLabels labels = group.in_flight->sum.labels;
  labels.peer = sends ? (rank_ + 1) % rank_count_ : Left(1);
  AddFlight(options_.track, sends ? "send" : "receive", PostedNs(group, operation), labels);
}

}  // namespace starring
