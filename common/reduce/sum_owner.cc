#include "common/reduce/sum_owner.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/reduce/element_sum.h"
#include "common/reduce/reduce_machine.h"

namespace starring {
namespace {

// An operation's number: the reduction's, the place, and whether it sends.
constexpr uint64_t kSends = uint64_t{1} << 63;
constexpr int kPlaceShift = 56;
constexpr uint64_t kNumberMask = (uint64_t{1} << kPlaceShift) - 1;

// As many pairs of tags as tell reductions apart; more would tell them no better.
constexpr int64_t kTagPairsMax = 1 << 20;

uint64_t OperationOf(int64_t number, int place) {
  return static_cast<uint64_t>(place) << kPlaceShift | static_cast<uint64_t>(number);
}

}  // namespace

StarTags StarTagsOf(const ReductionHead& head, int tag_max) {
  const int64_t pairs = (int64_t{tag_max} + 1 - ReduceMachine::kFirstElementTag) / 2;
  const int tag = ReduceMachine::kFirstElementTag + 2 * HeadTagNumber(head, std::min(pairs, kTagPairsMax));
  return {.contribution = tag, .answer = tag + 1};
}

SumOwner::SumOwner(Options options)
    : options_(std::move(options)),
      transport_(*options_.transport),
      other_count_(options_.worker_count - (transport_.rank() < options_.worker_count ? 1 : 0)),
      contributions_(options_.worker_count) {
  CHECK_GE(other_count_, 1);
}

void SumOwner::Begin(const Reduction& reduction, ElementRange slice) {
  CHECK_GE(slice.size(), 1);
  CHECK(slices_.empty() || reduction.number > slices_.rbegin()->first) << reduction.number;
  slices_.emplace(reduction.number, Slice{.reduction = reduction, .rest = slice});
  FillPlaces();
}

int SumOwner::Other(int i) const {
  const bool is_server = transport_.rank() >= options_.worker_count;
  return (transport_.rank() + i + (is_server ? 0 : 1)) % options_.worker_count;
}

// Contributions come in the order of pieces, so a place that is not free holds up all later pieces.
void SumOwner::FillPlaces() {
  for (auto& [number, slice] : slices_) {
    const ReductionHead& head = slice.reduction.head;
    while (slice.rest.size() > 0) {
      Place& place = places_[next_place_];
      if (place.slice != nullptr) return;
      const int64_t count = std::min(PieceElements(options_.worker_count, head.type), slice.rest.size());
      place = {.slice = &slice, .range = {slice.rest.begin, slice.rest.begin + count}, .missing = other_count_};
      slice.rest.begin += count;
      ++slice.unsummed;
      const int64_t bytes = options_.is_shared ? 0 : count * ElementBytes(head.type);
      const int tag = StarTagsOf(head, transport_.tag_max()).contribution;
      for (int i = 0; i < other_count_; ++i) {
        transport_.PostReceive(Other(i), tag, options_.memory.Contribution(next_place_, Other(i)).first(bytes),
                               {.poster = this, .operation = OperationOf(number, next_place_)});
      }
      next_place_ = (next_place_ + 1) % kPiecesOnTheirWay;
    }
  }
}

void SumOwner::OnCompletion(uint64_t operation) {
  if (options_.on_progress != nullptr) options_.on_progress();
  const int index = static_cast<int>((operation & ~kSends) >> kPlaceShift);
  Place& place = places_[index];
  if ((operation & kSends) == 0) {
    --place.missing;
    // Contributions of one rank are complete in order, but need not be reported so.
    while (places_[next_sum_].slice != nullptr && places_[next_sum_].missing == 0 && places_[next_sum_].sending == 0) {
      Add(std::exchange(next_sum_, (next_sum_ + 1) % kPiecesOnTheirWay));
    }
    return;
  }
  Slice& slice = slices_.at(static_cast<int64_t>(operation & kNumberMask));
  --slice.sending;
  if (place.sending > 0 && --place.sending == 0) place = {};
  EndIfOver(slice);
  FillPlaces();
}

void SumOwner::Add(int index) {
  Place& place = places_[index];
  Slice& slice = *place.slice;
  const ReductionHead& head = slice.reduction.head;
  const int64_t bytes = place.range.size() * ElementBytes(head.type);
  std::byte* const own = slice.reduction.data;
  std::byte* const own_piece = own == nullptr ? nullptr : own + place.range.begin * ElementBytes(head.type);
  for (int rank = 0; rank < options_.worker_count; ++rank) {
    contributions_[rank] = rank == transport_.rank() ? own_piece : options_.memory.Contribution(index, rank).data();
  }
  const std::span<std::byte> shared = options_.memory.Sum(index).first(bytes);
  std::byte* const sum = own == nullptr ? shared.data() : own_piece;
  SumContributions(contributions_, place.range.size(), head.result(), sum);
  if (own != nullptr && options_.is_shared) std::copy_n(sum, bytes, shared.data());
  --slice.unsummed;
  slice.sending += other_count_;
  // An answer is sent from the place at a server only. In all other cases the place may be filled again: a rank that
  // reads a shared sum sends no later contribution to the place before it has read it.
  const bool sends_from_place = own == nullptr && !options_.is_shared;
  if (sends_from_place) {
    place.sending = other_count_;
  } else {
    place = {};
  }
  const int tag = StarTagsOf(head, transport_.tag_max()).answer;
  const uint64_t operation = kSends | OperationOf(slice.reduction.number, index);
  for (int i = 0; i < other_count_; ++i) {
    transport_.PostSend(Other(i), tag, {sum, options_.is_shared ? 0 : static_cast<size_t>(bytes)},
                        {.poster = this, .operation = operation});
  }
  FillPlaces();
}

void SumOwner::EndIfOver(const Slice& slice) {
  if (slice.rest.size() > 0 || slice.unsummed > 0 || slice.sending > 0) return;
  const int64_t number = slice.reduction.number;
  slices_.erase(number);
  options_.on_answered(number);
}

}  // namespace starring
