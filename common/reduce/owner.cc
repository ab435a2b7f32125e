#include "common/reduce/owner.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "common/base/check.h"

namespace starring {
namespace {

// The owner takes contributions in this order: first of the rank after its own. So not all owners begin with the same
// rank, and ranks that send to the owners before them meet no other rank there.
std::vector<int> ArrivalsOf(const Owner::Options& options) {
  const std::vector<StarContributor>& contributors = options.contributors;
  const int first = options.owner + (options.contributes ? 1 : 0);
  const auto distance = [&](int contributor) {
    // `first` may be rank_count, or more at a server, hence its remainder.
    return (contributors[contributor].rank - first % options.rank_count + options.rank_count) % options.rank_count;
  };
  std::vector<int> arrivals;
  for (int i = 0; i < static_cast<int>(contributors.size()); ++i) {
    if (!options.contributes || contributors[i].rank != options.owner) arrivals.push_back(i);
  }
  std::ranges::sort(arrivals, [&](int a, int b) {
    return std::tuple(distance(a), contributors[a].node) < std::tuple(distance(b), contributors[b].node);
  });
  return arrivals;
}

}  // namespace

std::vector<StarContributor> OneOfEachRank(int rank_count) {
  std::vector<StarContributor> contributors;
  for (int rank = 0; rank < rank_count; ++rank) contributors.push_back({.rank = rank, .node = 0});
  return contributors;
}

int PlaceOfContribution(std::span<const StarContributor> contributors, int own_rank, int contributor) {
  // The owner's own contributions stay with the sink, so they take no place. All processes count alike, so they agree
  // on a place without a message.
  return contributor -
         static_cast<int>(std::ranges::count(contributors.first(contributor), own_rank, &StarContributor::rank));
}

int PlaceOfResult(std::span<const StarContributor> contributors, int own_rank) {
  return PlaceOfContribution(contributors, own_rank, static_cast<int>(contributors.size()));
}

Order::Options Owner::OrderOptions(const Options& options, const std::vector<int>& arrivals) {
  std::vector<int> places;
  for (const int contributor : arrivals) {
    places.push_back(PlaceOfContribution(options.contributors, options.contributes ? options.owner : -1, contributor));
  }
  return {.arrival_count = static_cast<int>(arrivals.size()),
          .plan = options.plan,
          .rank = options.owner,
          .rank_count = options.rank_count,
          .places = std::move(places)};
}

Owner::Owner(Options options)
    : options_(std::move(options)),
      release_(Release::LockStep(std::ssize(options_.contributors))),
      arrivals_(ArrivalsOf(options_)),
      terms_(options_.contributors.size()) {
  for (int i = 0; i < static_cast<int>(terms_.size()); ++i) {
    places_.push_back(PlaceOfContribution(options_.contributors, own_rank(), i));
  }
  CHECK_GE(options_.memory.slot_count(), 1);
  // Chain and tree know a contribution by the distance of its rank, so each rank has one, and the owner is a rank.
  CHECK(options_.plan == Order::Plan::kAll ||
        (options_.contributes && std::ssize(options_.contributors) == options_.rank_count));
  // The length of a contribution is that of its message. Messages about shared memory are empty, and partial sums have
  // whole pieces.
  CHECK(!options_.contributions_vary || (options_.plan == Order::Plan::kAll && !options_.is_shared));
  for (int slot = 0; slot < options_.memory.slot_count(); ++slot) {
    slots_.push_back({.memory = slot,
                      .order = Order(OrderOptions(options_, arrivals_)),
                      .lengths = std::vector<int64_t>(options_.contributions_vary ? arrivals_.size() : 0)});
    if (!options_.is_shared) free_memory_.push_back(slot);
  }
}

int Owner::WindowOf(const Options& options, int64_t piece_bytes) {
  const int64_t pieces = options.window_bytes / StarMemory::PlaceBytes(piece_bytes);
  // The upper bound only keeps the number small: PlaceCount takes no more places than there are arrivals.
  return static_cast<int>(std::clamp<int64_t>(pieces, 1, 2 * options.rank_count));
}

int64_t Owner::SlotBytes(const Options& options, const PieceSizes& sizes) {
  const std::vector<int> arrivals = ArrivalsOf(options);
  const auto bytes_of = [](int64_t places, int64_t piece_bytes) {
    return places * StarMemory::PlaceBytes(piece_bytes);
  };
  // A slot has the result if the sink has no place for it, if workers get other bytes than the owner keeps, or if they
  // read it from shared memory. A piece with several ranges needs it as well, for one message of all of them.
  const bool in_slots = !options.has_results || options.answers_differ || options.is_shared;
  const int results = in_slots || sizes.have_several_ranges ? 1 : 0;
  const int64_t joined = bytes_of(std::ssize(arrivals), sizes.joined_bytes_max);
  if (options.plan == Order::Plan::kAll) {
    return std::max(joined, bytes_of(std::ssize(arrivals) + results, sizes.piece_bytes_max));
  }
  const Order order(OrderOptions(options, arrivals));
  // Shorter pieces have more places on the way, but not more bytes.
  const int64_t on_the_way = std::max(options.window_bytes, bytes_of(1, sizes.piece_bytes_max));
  const int64_t usual = std::min(bytes_of(order.held_max(), sizes.piece_bytes_max) + on_the_way,
                                 bytes_of(std::ssize(arrivals), sizes.piece_bytes_max));
  return std::max(joined, usual + bytes_of(results, sizes.piece_bytes_max));
}

int Owner::Begin(const StarPieces& pieces, int64_t stride) {
  CHECK(CanBegin());
  // Slots begin in turn, because workers take them in the same turn (Star::AskNext).
  const int index = std::exchange(next_slot_, (next_slot_ + 1) % static_cast<int>(slots_.size()));
  Slot& slot = slots_[index];
  slot.is_used = true;
  // Memory that was freed last may still be in the cache. Shared memory belongs to its slot, where workers look for it.
  if (!options_.is_shared) {
    slot.memory = free_memory_.back();
    free_memory_.pop_back();
  }
  slot.pieces = &pieces;
  slot.stride = stride;
  slot.piece = pieces.PieceAt(stride, options_.owner);
  CHECK_GT(slot.piece.bytes, 0);
  const bool is_joined = pieces.IsJoined(stride);
  // The chains of several chunks begin with different ranks.
  slot.plan = is_joined && options_.plan == Order::Plan::kChain ? Order::Plan::kAll : options_.plan;
  // A joined piece is short, so all its contributions may travel at once.
  const int window = is_joined ? options_.rank_count : WindowOf(options_, slot.piece.bytes);
  slot.order.Begin(slot.plan, window);
  // The own contributions need not arrive.
  slot.here = static_cast<int>(options_.contributors.size() - arrivals_.size());
  // The sink may read contributions after it has begun to write the result (StarSink::Finished), so the result has a
  // place of its own.
  slot.result_place =
      slot.plan == Order::Plan::kAll ? PlaceOfResult(options_.contributors, own_rank()) : slot.order.PlaceCount(window);
  return index;
}

void Owner::Free(int slot) {
  slots_[slot].is_used = false;
  if (!options_.is_shared) free_memory_.push_back(slots_[slot].memory);
}

std::optional<Owner::Receive> Owner::NextReceive(int slot) {
  Order& order = slots_[slot].order;
  const int arrival = order.taken_count();
  const std::optional<int> place = order.TakeNext();
  if (!place.has_value()) return std::nullopt;
  return Receive{.arrival = arrival,
                 .rank = RankOf(arrival),
                 .place = Place(slots_[slot], *place),
                 .bytes = options_.contributions_vary ? &slots_[slot].lengths[arrival] : nullptr};
}

Owner::State Owner::OnArrival(int slot, int arrival) {
  Slot& piece = slots_[slot];
  if (piece.plan == Order::Plan::kAll) {
    const int contributor = arrivals_[arrival];
    std::span<std::byte> contribution = Place(piece, places_[contributor]);
    if (options_.contributions_vary) contribution = contribution.first(piece.lengths[arrival]);
    options_.sink->OnContribution(piece.pieces->sum(), contributor, contribution);
  }
  bool has_added = false;
  piece.order.Put(arrival, [&](int from, int into) {
    Add(piece, from, into);
    has_added = true;
  });
  if (!release_.Seals(++piece.here)) {
    // The places of what was added are free, and NextReceive names them to the transport.
    if (has_added && piece.order.taken_count() < arrival_count()) options_.sink->Complete();
    return State::kTaking;
  }
  CHECK(piece.order.is_complete());
  Finish(piece);
  return piece.unfinished > 0 ? State::kFinishing : State::kSealed;
}

Owner::State Owner::OnFinished(int slot) {
  CHECK_GT(slots_[slot].unfinished, 0);
  return --slots_[slot].unfinished > 0 ? State::kFinishing : State::kSealed;
}

std::span<std::byte> Owner::Place(const Slot& slot, int place) const {
  return options_.memory.Place(slot.memory, place, slot.piece.bytes);
}

void Owner::Add(const Slot& slot, int from, int into) {
  const StarSum& sum = slot.pieces->sum();
  const TraceSpan span(options_.track, "sum", sum.labels);
  const std::span<std::byte> to = Place(slot, into);
  // The own contribution is in the sink's array, in as many parts as the piece has ranges.
  if (from != Order::kOwn) return options_.sink->Add(sum, Place(slot, from), to);
  slot.pieces->ForEachRange(slot.stride, options_.owner, [&](ElementRange range, int64_t at) {
    const std::span<const std::byte> own = options_.sink->Contribution(sum, 0, range);
    options_.sink->Add(sum, own, to.subspan(at * sum.element_bytes, own.size()));
  });
}

bool Owner::ResultIsInSlot(const Slot& slot) const {
  return !options_.has_results || options_.answers_differ || options_.is_shared || slot.piece.only.size() == 0;
}

void Owner::Finish(Slot& slot) {
  const StarSum& sum = slot.pieces->sum();
  const TraceSpan span(options_.track, "apply", sum.labels);
  slot.pieces->ForEachRange(slot.stride, options_.owner, [&](ElementRange range, int64_t at) {
    const int64_t at_bytes = at * sum.element_bytes;
    std::span<std::byte> in_slot;
    if (ResultIsInSlot(slot)) {
      in_slot = Place(slot, slot.result_place).subspan(at_bytes, range.size() * sum.element_bytes);
    }
    // A sink that finishes later names the piece by its slot (Star::OnFinished).
    StarSink::Output output = {.range = range, .record = in_slot, .piece = static_cast<int>(&slot - slots_.data())};
    if (options_.has_results) {
      output.record = options_.sink->Result(sum, range);
      output.answer = in_slot;
    }
    if (FinishRange(slot, output, at_bytes) == StarSink::Finished::kLater) ++slot.unfinished;
  });
  // The result leaves next, and the next piece's contributions arrive where the sink still reads this one's.
  options_.sink->Complete();
}

StarSink::Finished Owner::FinishRange(const Slot& slot, const StarSink::Output& output, int64_t at_bytes) {
  const StarSum& sum = slot.pieces->sum();
  const ElementRange range = output.range;
  StarSink& sink = *options_.sink;
  const int64_t bytes = range.size() * sum.element_bytes;
  if (slot.plan != Order::Plan::kAll) {
    // All but the last two summands are added. The sink adds those while it makes the result, which saves a pass over
    // memory.
    const Order::Parts parts = slot.order.parts();
    const std::span<const std::byte> other = parts.other == Order::kOwn
                                                 ? sink.Contribution(sum, 0, range)
                                                 : Place(slot, parts.other).subspan(at_bytes, bytes);
    return sink.FinishParts(sum, output, {.part = Place(slot, parts.part).subspan(at_bytes, bytes), .other = other});
  }
  for (size_t i = 0; i < terms_.size(); ++i) {
    const StarContributor& one = options_.contributors[i];
    const bool is_own = options_.contributes && one.rank == options_.owner;
    // The sink does not write to its own contribution.
    terms_[i] = is_own ? const_cast<std::byte*>(sink.Contribution(sum, one.node, range).data())
                       : Place(slot, places_[i]).data() + at_bytes;
  }
  return sink.FinishAll(sum, output, terms_);
}

std::span<const std::byte> Owner::Result(int slot) const {
  const Slot& at = slots_[slot];
  if (ResultIsInSlot(at)) return Place(at, at.result_place);
  return options_.sink->Result(at.pieces->sum(), at.piece.only);
}

}  // namespace starring
