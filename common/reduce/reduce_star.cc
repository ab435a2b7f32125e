#include "common/reduce/reduce_star.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/limits.h"

namespace starring {
namespace {

// An operation's number: the reduction's, the owner's, the place, and whether it is the answer.
constexpr uint64_t kIsAnswer = uint64_t{1} << 61;
constexpr int kPlaceShift = 58;
constexpr uint64_t kPlaceMask = 7;
static_assert(kPiecesOnTheirWay <= kPlaceMask + 1);
constexpr int kOwnerShift = 46;
constexpr uint64_t kOwnerMask = 0xfff;
static_assert(kWorldSizeMax <= kOwnerMask + 1);
constexpr uint64_t kNumberMask = (uint64_t{1} << kOwnerShift) - 1;

}  // namespace

ReduceStar::ReduceStar(Options options)
    : ReduceMachine(options.transport, options.server_count), options_(std::move(options)), outboxes_(owner_count()) {
  CHECK(options_.shared.empty() || std::ssize(options_.shared) == owner_count());
  if (server_count() > 0 || worker_count() == 1) return;
  CHECK(options_.memory.has_value());
  own_sums_.emplace(SumOwner::Options{.transport = options_.transport,
                                      .worker_count = worker_count(),
                                      .memory = *options_.memory,
                                      .is_shared = !options_.shared.empty(),
                                      .on_answered = [this](int64_t number) { Complete(number); },
                                      // A long slice is slow, not stuck: each of its pieces counts.
                                      .on_progress = [this] { NoteProgress(); }});
}

void ReduceStar::Start(const Reduction& reduction) {
  // Receives are posted before anything is sent. Ranks begin with different owners, so that not all send to one.
  if (own_sums_.has_value()) {
    const ElementRange own = SliceOf(reduction, rank(), owner_count());
    if (own.size() > 0) {
      Expect(reduction.number, 1);
      own_sums_->Begin(reduction, own);
    }
  }
  for (int i = 0; i < owner_count(); ++i) {
    const int owner = (rank() + i) % owner_count();
    if (RankOf(owner) != rank()) Ask(reduction, owner);
  }
}

void ReduceStar::Ask(const Reduction& reduction, int owner) {
  const ElementRange slice = SliceOf(reduction, owner, owner_count());
  if (slice.size() == 0) return;
  const int64_t element_bytes = ElementBytes(reduction.head.type);
  const int64_t bytes = slice.size() * element_bytes;
  const int64_t pieces = (bytes + PieceBytes(worker_count()) - 1) / PieceBytes(worker_count());
  Expect(reduction.number, 2 * pieces);
  outboxes_[owner].waiting.push_back(
      {.number = reduction.number,
       .rest = {reduction.data + slice.begin * element_bytes, static_cast<size_t>(bytes)},
       .tags = StarTagsOf(reduction.head, transport().tag_max())});
  Post(owner);
}

void ReduceStar::Post(int owner) {
  Outbox& outbox = outboxes_[owner];
  while (!outbox.waiting.empty() && outbox.asked[outbox.next_place].empty()) {
    Waiting& next = outbox.waiting.front();
    const int place = std::exchange(outbox.next_place, (outbox.next_place + 1) % kPiecesOnTheirWay);
    const auto piece = next.rest.first(std::min<size_t>(PieceBytes(worker_count()), next.rest.size()));
    outbox.asked[place] = piece;
    std::span<std::byte> message = piece;
    if (!options_.shared.empty()) {
      std::ranges::copy(piece, options_.shared[owner].Contribution(place, rank()).begin());
      message = {};
    }
    const uint64_t operation = static_cast<uint64_t>(place) << kPlaceShift |
                               static_cast<uint64_t>(owner) << kOwnerShift | static_cast<uint64_t>(next.number);
    transport().PostReceive(RankOf(owner), next.tags.answer, message,
                            {.poster = this, .operation = kIsAnswer | operation});
    transport().PostSend(RankOf(owner), next.tags.contribution, message, {.poster = this, .operation = operation});
    next.rest = next.rest.subspan(piece.size());
    if (next.rest.empty()) outbox.waiting.pop_front();
  }
}

void ReduceStar::Advance(uint64_t operation) {
  if ((operation & kIsAnswer) != 0) {
    TakeAnswer(static_cast<int>(operation >> kOwnerShift & kOwnerMask),
               static_cast<int>(operation >> kPlaceShift & kPlaceMask));
  }
  Complete(static_cast<int64_t>(operation & kNumberMask));
}

void ReduceStar::TakeAnswer(int owner, int place) {
  const std::span<std::byte> piece = std::exchange(outboxes_[owner].asked[place], {});
  if (!options_.shared.empty()) {
    std::ranges::copy(options_.shared[owner].Sum(place).first(piece.size()), piece.begin());
  }
  Post(owner);
}

}  // namespace starring
