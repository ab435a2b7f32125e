#include "common/reduce/star.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/copy_array.h"
#include "common/base/limits.h"

namespace starring {
namespace {

// An operation's number: kind << 60 | slot << 40 | peer.
constexpr int kKindShift = 60;
constexpr int kSlotShift = 40;
constexpr uint64_t kSlotMask = (uint64_t{1} << (kKindShift - kSlotShift)) - 1;
constexpr uint64_t kPeerMask = (uint64_t{1} << kSlotShift) - 1;

// The most sets of tags. More sets would not distinguish sums any better.
constexpr int64_t kTagSetsMax = 1 << 18;

int64_t TagCount(const Star::Options& options) { return int64_t{options.transport->tag_max()} + 1 - options.first_tag; }

}  // namespace

Star::Star(const Options& options)
    : options_(options),
      transport_(*options.transport),
      sink_(*options.sink),
      rank_(transport_.rank()),
      worker_count_(transport_.world_size() - options.server_count),
      // A slot needs two tags: one for contributions, and one for answers.
      slot_count_(static_cast<int>(std::min<int64_t>(options.slot_count, TagCount(options) / 2))),
      window_bytes_(slot_count_ * options.window_bytes),
      asked_(owner_count(), std::vector<Asked>(slot_count_)),
      next_slot_(owner_count(), 0) {
  CHECK_GE(transport_.world_size(), 2);
  CHECK(options_.shared.empty() || std::ssize(options_.shared) == owner_count());
  CHECK_GE(slot_count_, 1) << "too few tags";
  CHECK(!options_.contributions_vary || (options_.shared.empty() && !options_.sizes.have_several_ranges));
  // The tags that are left tell sums apart (StarSum::tag_key).
  tag_sets_ = std::min(TagCount(options) / (2 * slot_count_), kTagSetsMax);
  for (int i = 0; i < static_cast<int>(options_.contributors.size()); ++i) {
    const StarContributor& one = options_.contributors[i];
    if (one.rank != rank_) continue;
    own_contributors_.resize(std::max<size_t>(own_contributors_.size(), one.node + 1));
    own_contributors_[one.node] = i;
  }
  if (options_.server_count == 0) own_number_ = rank_;
  if (options_.server_count > 0 && !is_worker()) own_number_ = rank_ - worker_count();
  // With a window one cursor asks all owners in turn. Without one each owner has its own cursor, so a slow owner holds
  // up its own pieces alone.
  if (is_worker()) asking_.resize(window_bytes_ > 0 ? 1 : other_owner_count());
  AllocateMemory();
}

void Star::AllocateMemory() {
  const int slots = slot_count_;
  const int64_t place_bytes = StarMemory::PlaceBytes(options_.sizes.piece_bytes_max);
  if (is_worker() && options_.sizes.have_several_ranges) {
    // Pieces of all owners and slots may be on their way at once, so each has memory. The own pieces are not sent.
    const std::span<std::byte> memory = sink_.Allocate(other_owner_count() * slots * place_bytes);
    packing_.resize(static_cast<size_t>(owner_count()) * slots);
    for (int i = 0; i < other_owner_count() * slots && !memory.empty(); ++i) {
      packing_[OwnerAt(i / slots) * slots + i % slots] = memory.subspan(i * place_bytes, place_bytes);
    }
  }
  if (options_.track != nullptr) {
    // For three kinds of operations. The times of sent answers are in answering_, which grows as needed.
    posted_ns_.resize(3 * static_cast<size_t>(slots) *
                      std::max(owner_count(), static_cast<int>(options_.contributors.size())));
  }
  if (own_number_ < 0) return;
  // An owner always limits the bytes on their way to it, even if this process sends without a window.
  Owner::Options owner = {.sink = &sink_,
                          .owner = own_number_,
                          .rank_count = worker_count(),
                          .contributes = is_worker(),
                          .has_results = options_.owners_have_results,
                          .answers_differ = options_.answers_differ,
                          .contributions_vary = options_.contributions_vary,
                          .contributors = options_.contributors,
                          .plan = options_.plan,
                          .window_bytes = kStarWindowBytes,
                          .memory = {},
                          .is_shared = options_.is_shared,
                          .track = options_.track};
  owner.memory = options_.memory.has_value()
                     ? *options_.memory
                     : StarMemory(sink_.Allocate(slots * Owner::SlotBytes(owner, options_.sizes)), slots);
  CHECK_EQ(owner.memory.slot_count(), slots);
  owner_.emplace(std::move(owner));
  owned_.resize(slots);
}

void Star::Submit(const StarSum& sum) {
  if (is_stopped_) return;
  CHECK_GT(sum.elements.size(), 0);
  CHECK_EQ(sum.owners.owner_count(), owner_count());
  const int64_t id = next_id_++;
  InFlight& in_flight = sums_.try_emplace(id, id, sum, options_.message_bytes_max).first->second;
  in_flight.tag_set = static_cast<int64_t>(sum.tag_key % static_cast<uint64_t>(tag_sets_));
  if (options_.track != nullptr) in_flight.submitted_ns = TraceNow();
  in_flight.unready = std::ssize(asking_) + (owner_.has_value() ? 1 : 0);
  Proceed(asking_);
}

// Receives come first: a message for which no receive is posted would be copied, or would wait. Answers come before
// contributions, because others wait for them.
void Star::Proceed(std::span<Cursor> asking) {
  while (owner_.has_value() && BeginNextPiece()) {
  }
  while (!answers_.empty() && SendAnswer()) {
  }
  for (Cursor& cursor : asking) {
    while (AskNext(cursor)) {
    }
  }
  SendPacked();
}

// A star of a thousand ranks would otherwise look at a thousand owners for each message of one.
std::span<Star::Cursor> Star::AskingOf(const Operation& completed) {
  if (completed.kind == Kind::kContributionReceive || completed.kind == Kind::kAnswerSend) return {};
  if (window_bytes_ > 0) return asking_;
  return std::span(asking_).subspan(PlaceOf(completed.peer), 1);
}

Star::InFlight* Star::SumAt(Cursor& cursor) {
  if (cursor.id == next_id_) return nullptr;
  const auto at = sums_.lower_bound(cursor.id);
  if (at == sums_.end()) return nullptr;
  // The sum at which the process was is over.
  if (at->first != cursor.id) cursor = {.id = at->first};
  return &at->second;
}

int Star::OwnerAt(int i) const {
  if (options_.server_count > 0) return (rank_ + i) % owner_count();
  // other_owner_count() bounds i, so adding owner_count() once is enough for a remainder of 0 or more.
  return (rank_ - 1 - i + owner_count()) % owner_count();
}

int Star::PlaceOf(int owner) const {
  const int distance = options_.server_count > 0 ? owner - rank_ : rank_ - 1 - owner;
  // Adding owner_count() alone would not do: a worker's rank may be many times the number of servers.
  return (distance % owner_count() + owner_count()) % owner_count();
}

int Star::AnswerRank(int i) const { return (is_worker() ? rank_ + 1 + i : own_number_ + i) % worker_count(); }

bool Star::AskNext(Cursor& cursor) {
  InFlight* const in_flight = SumAt(cursor);
  if (in_flight == nullptr) return false;
  // With a window, a cursor goes through all owners of a stride. Without, each owner has its cursor.
  const auto number = static_cast<int>(&cursor - asking_.data());
  const bool has_window = window_bytes_ > 0;
  if (cursor.next == (has_window ? other_owner_count() : 1)) cursor = {.id = cursor.id, .stride = cursor.stride + 1};
  if (cursor.stride == in_flight->pieces.stride_count()) {
    cursor = {.id = cursor.id + 1};
    CountReady(*in_flight);
    return true;
  }
  const int owner = OwnerAt(has_window ? cursor.next : number);
  if (const StarPieces::Piece piece = in_flight->pieces.PieceAt(cursor.stride, owner); piece.bytes > 0) {
    Asked& asked = asked_[owner][next_slot_[owner]];
    // A contribution to shared memory is copied at once, so it needs no window.
    const int64_t bytes = options_.shared.empty() ? piece.bytes * std::ssize(own_contributors_) : 0;
    // Both ends take the slots in turn. So this worker waits for the slot that the owner will use, even if another one
    // is free.
    if (asked.in_flight != nullptr || !HasWindowFor(bytes, asking_bytes_)) return false;
    // The piece's bytes count, as in OnContributionSent: an encoded message may be shorter.
    asking_bytes_ += bytes;
    asked = {.in_flight = in_flight, .stride = cursor.stride, .piece = piece};
    Ask(owner);
  }
  ++cursor.next;
  return true;
}

void Star::Ask(int owner) {
  const int slot = std::exchange(next_slot_[owner], (next_slot_[owner] + 1) % slot_count_);
  Asked& asked = asked_[owner][slot];
  if (asked.piece.only.size() == 0) asked.packed = PackedOf(owner, slot, asked.piece.bytes);
  asked.unsent = static_cast<int>(own_contributors_.size());
  // The answer counts from here on, even if its receive is posted later.
  asked.in_flight->unready += asked.unsent + 1;
  if (asked.packed.empty()) {
    // Posted before the contribution leaves: an answer that no receive expects would be copied, or would wait.
    ReceiveAnswer(owner, slot);
  } else {
    Pack(asked, owner);
    if (options_.packs_together) return packed_.push_back({.owner = owner, .slot = slot});
    sink_.Complete();
  }
  SendContributions(owner, slot);
}

void Star::SendPacked() {
  if (packed_.empty()) return;
  sink_.Complete();
  for (const OwnersSlot& one : packed_) SendContributions(one.owner, one.slot);
  packed_.clear();
}

void Star::SendContributions(int owner, int slot) {
  const Asked& asked = asked_[owner][slot];
  for (int node = 0; node < static_cast<int>(own_contributors_.size()); ++node) {
    const std::span<const std::byte> message =
        asked.packed.empty() ? sink_.Contribution(asked.in_flight->sum, node, asked.piece.only) : asked.packed;
    if (!options_.shared.empty()) CopyToOwner(asked, owner, slot, own_contributors_[node], message);
    const int tag = TagOf(*asked.in_flight, slot, Way::kContributions);
    bytes_sent_ += std::ssize(message);
    Send(RankOf(owner), tag, {.kind = Kind::kContributionSend, .slot = slot, .peer = owner},
         options_.shared.empty() ? message : message.first(0));
  }
}

std::span<std::byte> Star::PackedOf(int owner, int slot, int64_t bytes) const {
  return packing_[owner * slot_count_ + slot].first(bytes);
}

void Star::Pack(const Asked& asked, int owner) {
  const StarSum& sum = asked.in_flight->sum;
  // There is one packing memory for the slot, and a second node would overwrite the first one's message.
  CHECK_EQ(asked.unsent, 1) << "nodes of one worker cannot be packed";
  asked.in_flight->pieces.ForEachRange(asked.stride, owner, [&](ElementRange range, int64_t at) {
    sink_.Copy(sink_.Contribution(sum, 0, range), asked.packed.subspan(at * sum.element_bytes));
  });
}

void Star::CopyToOwner(const Asked& asked, int owner, int slot, int contributor, std::span<const std::byte> message) {
  const int place = PlaceOfContribution(options_.contributors, own_rank_of(owner), contributor);
  CopyArray(message, options_.shared[owner].Place(slot, place, asked.piece.bytes));
}

void Star::OnCompletion(uint64_t operation) {
  const Operation completed = {.kind = static_cast<Kind>(operation >> kKindShift),
                               .slot = static_cast<int>(operation >> kSlotShift & kSlotMask),
                               .peer = static_cast<int>(operation & kPeerMask)};
  if (is_stopped_) return;
  sink_.OnProgress();
  switch (completed.kind) {
    case Kind::kContributionSend:
      OnContributionSent(completed.peer, completed.slot);
      break;
    case Kind::kAnswerReceive:
      OnAnswer(completed.peer, completed.slot);
      break;
    case Kind::kContributionReceive:
      OnContribution(completed.slot, completed.peer);
      break;
    case Kind::kAnswerSend:
      OnAnswerSent(completed.slot, completed.peer);
      break;
  }
  Proceed(AskingOf(completed));
}

void Star::OnContributionSent(int owner, int slot) {
  Asked& asked = asked_[owner][slot];
  InFlight& in_flight = *asked.in_flight;
  TraceFlight(in_flight.sum, RankOf(owner), {.kind = Kind::kContributionSend, .slot = slot, .peer = owner});
  if (options_.shared.empty()) asking_bytes_ -= asked.piece.bytes;
  // The answer arrives where the packed contribution was.
  if (--asked.unsent == 0 && !asked.packed.empty()) ReceiveAnswer(owner, slot);
  FreeIfOver(asked);
  CountReady(in_flight);
}

void Star::ReceiveAnswer(int owner, int slot) {
  const Asked& asked = asked_[owner][slot];
  const StarSum& sum = asked.in_flight->sum;
  const std::span<std::byte> place = asked.packed.empty() ? sink_.Result(sum, asked.piece.only) : asked.packed;
  Receive(*asked.in_flight, RankOf(owner), {.kind = Kind::kAnswerReceive, .slot = slot, .peer = owner}, place);
}

void Star::OnAnswer(int owner, int slot) {
  Asked& asked = asked_[owner][slot];
  InFlight& in_flight = *asked.in_flight;
  TraceFlight(in_flight.sum, RankOf(owner), {.kind = Kind::kAnswerReceive, .slot = slot, .peer = owner});
  TakeAnswer(asked, owner, slot);
  bytes_received_ += asked.piece.bytes;
  asked.is_answered = true;
  FreeIfOver(asked);
  CountReady(in_flight);
}

// An answer may be reported before the sends of the contributions to which it is the answer.
void Star::FreeIfOver(Asked& asked) {
  if (asked.is_answered && asked.unsent == 0) asked = {};
}

void Star::TakeAnswer(const Asked& asked, int owner, int slot) {
  std::span<const std::byte> message = asked.packed;
  if (!options_.shared.empty()) {
    const int place = PlaceOfResult(options_.contributors, own_rank_of(owner));
    message = options_.shared[owner].Place(slot, place, asked.piece.bytes);
  }
  if (message.empty()) return;  // it has arrived at its place
  const StarSum& sum = asked.in_flight->sum;
  asked.in_flight->pieces.ForEachRange(asked.stride, owner, [&](ElementRange range, int64_t at) {
    const std::span<std::byte> result = sink_.Result(sum, range);
    sink_.Copy(message.subspan(at * sum.element_bytes, result.size()), result);
  });
}

bool Star::BeginNextPiece() {
  InFlight* const in_flight = SumAt(owning_);
  if (in_flight == nullptr) return false;
  const StarPieces& pieces = in_flight->pieces;
  // The results of the sum before it with this number still leave from where the new ones will be.
  if (options_.results_are_replaced && owning_.stride == 0 && IsRepeated(*in_flight)) return false;
  if (owning_.stride == pieces.stride_count()) {
    owning_ = {.id = owning_.id + 1};
    CountReady(*in_flight);
    return true;
  }
  const StarPieces::Piece piece = pieces.PieceAt(owning_.stride, own_number_);
  if (piece.bytes > 0) {
    if (!owner_->CanBegin()) return false;
    const int slot = owner_->Begin(pieces, owning_.stride);
    owned_[slot] = in_flight;
    ++in_flight->unready;
    in_flight->unfinished += answer_count();
    PostReceives(slot);
  }
  ++owning_.stride;
  return true;
}

bool Star::IsRepeated(const InFlight& in_flight) const {
  for (const auto& [id, other] : sums_) {
    // Sums are in the order of their ids, so the loop sees only earlier ones.
    if (id == in_flight.id) return false;
    if (other.sum.number == in_flight.sum.number) return true;
  }
  return false;
}

void Star::PostReceives(int slot) {
  while (const std::optional<Owner::Receive> next = owner_->NextReceive(slot)) {
    Receive(*owned_[slot], next->rank, {.kind = Kind::kContributionReceive, .slot = slot, .peer = next->arrival},
            next->place, next->bytes);
  }
}

void Star::OnContribution(int slot, int arrival) {
  InFlight& in_flight = *owned_[slot];
  TraceFlight(in_flight.sum, owner_->RankOf(arrival),
              {.kind = Kind::kContributionReceive, .slot = slot, .peer = arrival});
  bytes_received_ += owner_->BytesOf(slot, arrival);
  OnState(slot, owner_->OnArrival(slot, arrival));
}

void Star::OnFinished(int piece) {
  if (is_stopped_) return;
  OnState(piece, owner_->OnFinished(piece));
  Proceed({});
}

void Star::OnState(int slot, Owner::State state) {
  if (is_stopped_ || state == Owner::State::kFinishing) return;
  if (state == Owner::State::kTaking) return PostReceives(slot);
  InFlight& in_flight = *owned_[slot];
  BeginAnswers(slot);
  CountReady(in_flight);
}

// Where the result is not in the slot, that takes the next piece at once. A worker contributes to that when it has its
// answer, which may be before the others have theirs.
void Star::BeginAnswers(int slot) {
  const auto free = std::ranges::find(answering_, nullptr, &Answering::in_flight);
  const auto index = static_cast<int>(free - answering_.begin());
  if (free == answering_.end()) answering_.emplace_back();
  Answering& answering = answering_[index];
  answering.in_flight = owned_[slot];
  answering.slot = slot;
  answering.is_in_slot = owner_->ResultIsInSlot(slot);
  answering.result = owner_->Result(slot);
  answering.unsent = answer_count();
  if (options_.track != nullptr) answering.posted_ns.resize(worker_count());
  if (!answering.is_in_slot) owner_->Free(slot);
  for (int i = 0; i < answer_count(); ++i) answers_.push_back({.index = index, .rank = AnswerRank(i)});
}

bool Star::SendAnswer() {
  const Answer answer = answers_.front();
  Answering& answering = answering_[answer.index];
  const std::span<const std::byte> message = options_.is_shared ? answering.result.first(0) : answering.result;
  if (!HasWindowFor(std::ssize(message), answering_bytes_)) return false;
  answers_.pop_front();
  answering_bytes_ += std::ssize(message);
  bytes_sent_ += std::ssize(answering.result);
  const int tag = TagOf(*answering.in_flight, answering.slot, Way::kAnswers);
  Send(answer.rank, tag, {.kind = Kind::kAnswerSend, .slot = answer.index, .peer = answer.rank}, message);
  return true;
}

void Star::OnAnswerSent(int index, int rank) {
  Answering& answering = answering_[index];
  InFlight& in_flight = *answering.in_flight;
  TraceFlight(in_flight.sum, rank, {.kind = Kind::kAnswerSend, .slot = index, .peer = rank});
  if (!options_.is_shared) answering_bytes_ -= std::ssize(answering.result);
  if (--answering.unsent == 0) {
    if (answering.is_in_slot) owner_->Free(answering.slot);
    answering.in_flight = nullptr;
  }
  --in_flight.unfinished;
  EndIfDone(in_flight);
}

void Star::CountReady(InFlight& in_flight) {
  if (--in_flight.unready > 0) return;
  sink_.Complete();
  AddFlight(options_.track, "exchange", in_flight.submitted_ns, in_flight.sum.labels);
  sink_.OnReady(in_flight.sum);
  EndIfDone(in_flight);
}

void Star::EndIfDone(InFlight& in_flight) {
  if (in_flight.unready > 0 || in_flight.unfinished > 0) return;
  // The copy outlives the entry, which goes first so that Oldest does not name a sum that is done.
  const StarSum sum = in_flight.sum;
  sums_.erase(in_flight.id);
  sink_.OnDone(sum);
}

void Star::Send(int rank, int tag, Operation operation, std::span<const std::byte> data) {
  if (options_.track != nullptr) PostedNs(operation) = TraceNow();
  transport_.PostSend(rank, tag, data, TokenOf(operation));
}

void Star::Receive(const InFlight& in_flight, int rank, Operation operation, std::span<std::byte> data,
                   int64_t* bytes) {
  if (options_.track != nullptr) PostedNs(operation) = TraceNow();
  const bool is_answer = operation.kind == Kind::kAnswerReceive;
  if (is_answer ? !options_.shared.empty() : options_.is_shared) data = {};
  const int tag = TagOf(in_flight, operation.slot, is_answer ? Way::kAnswers : Way::kContributions);
  Transport::Token token = TokenOf(operation);
  token.bytes = bytes;
  transport_.PostReceive(rank, tag, data, token);
}

// A slot's tags are used again by its next piece. Each side has posted all messages of the first use before any of the
// second, and messages of one tag match in the order in which they were posted.
int Star::TagOf(const InFlight& in_flight, int slot, Way way) const {
  const int64_t set = in_flight.tag_set;
  return options_.first_tag + static_cast<int>((set * slot_count_ + slot) * 2 + (way == Way::kAnswers ? 1 : 0));
}

Transport::Token Star::TokenOf(Operation operation) {
  return {.poster = this,
          .operation = static_cast<uint64_t>(operation.kind) << kKindShift |
                       static_cast<uint64_t>(operation.slot) << kSlotShift | static_cast<uint64_t>(operation.peer)};
}

int64_t& Star::PostedNs(Operation operation) {
  if (operation.kind == Kind::kAnswerSend) return answering_[operation.slot].posted_ns[operation.peer];
  // kAnswerSend, the last kind, is handled above. The three others have the numbers 0 to 2.
  const int64_t kind_and_slot = static_cast<int64_t>(operation.kind) * slot_count_ + operation.slot;
  return posted_ns_[kind_and_slot * (std::ssize(posted_ns_) / (3 * slot_count_)) + operation.peer];
}

void Star::TraceFlight(const StarSum& sum, int rank, Operation operation) {
  if (options_.track == nullptr) return;
  const bool sends = operation.kind == Kind::kContributionSend || operation.kind == Kind::kAnswerSend;
  TraceLabels labels = sum.labels;
  labels.peer = rank;
  AddFlight(options_.track, sends ? "send" : "receive", PostedNs(operation), labels);
}

}  // namespace starring
