#include "worker/exchange/peer/gpu/gpu_flags.h"

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace starring {
namespace {

static_assert(kPeerRanksMax <= sizeof(uint64_t), "a word has a byte for each rank");

// How long the words keep the value of one slot: a GPU whose process waits for its turn may look rarely.
constexpr std::chrono::milliseconds kHold{2};

uint64_t ByteOf(int slot) { return static_cast<uint64_t>(slot) + 1; }

}  // namespace

// All words have eight bytes.
int64_t GpuFlags::Bytes(int bucket_count, int rank_count, bool is_ring) {
  constexpr auto kWordBytes = static_cast<int64_t>(sizeof(uint64_t));
  const int64_t buckets = bucket_count + 1;
  const int64_t findings = StreamExchange::kSlots * buckets * rank_count;
  const int64_t ring_words =
      is_ring ? int64_t{bucket_count} * rank_count * RingSchedule{.rank_count = rank_count}.signal_count() : 0;
  return static_cast<int64_t>(sizeof(Head)) + buckets * static_cast<int64_t>(sizeof(Words)) +
         (findings + ring_words) * kWordBytes;
}

GpuFlags::GpuFlags(Options options)
    : options_(std::move(options)),
      all_ranks_(static_cast<size_t>(options_.rank_count), true),
      head_(*reinterpret_cast<Head*>(options_.memory.data())),
      words_(reinterpret_cast<Words*>(options_.memory.data() + sizeof(Head)), options_.owners.size() + 1),
      schedule_({.rank = options_.rank, .rank_count = options_.rank_count}),
      ring_words_(reinterpret_cast<std::atomic<uint64_t>*>(options_.memory.data() +
                                                           Bytes(trial_bucket(), options_.rank_count, false)),
                  options_.is_ring ? options_.owners.size() * options_.rank_count * schedule_.signal_count() : 0) {
  CHECK(2 <= options_.rank_count && options_.rank_count <= kPeerRanksMax) << options_.rank_count;
  CHECK_GE(std::ssize(options_.memory), Bytes(trial_bucket(), options_.rank_count, options_.is_ring));
  for (const std::vector<bool>& ranks : options_.owners) CHECK_EQ(std::ssize(ranks), options_.rank_count);
}

absl::StatusOr<std::unique_ptr<GpuFlags>> GpuFlags::Create(Options options) {
  auto flags = absl::WrapUnique(new GpuFlags(std::move(options)));
  ASSIGN_OR_RETURN(flags->board_, flags->options_.device->MapBoard(flags->options_.memory));
  return flags;
}

// The bytes of `ranks` have the value of the slot, all others are 0.
uint64_t GpuFlags::ValueOf(int slot, const std::vector<bool>& ranks) const {
  uint64_t value = 0;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank]) value |= ByteOf(slot) << (8 * rank);
  }
  return value;
}

int64_t* GpuFlags::Finding(int slot, int bucket) const {
  auto* const findings = reinterpret_cast<int64_t*>(words_.data() + words_.size());
  return findings + (int64_t{slot} * bucket_count() + bucket) * options_.rank_count;
}

absl::Status GpuFlags::Arrive(CudaStream* stream, int slot, int bucket) {
  return board_->Store(stream, OwnByte(words_[bucket].arrived), static_cast<uint8_t>(ByteOf(slot)));
}

absl::Status GpuFlags::AwaitArrivals(CudaStream* stream, int slot, int bucket) {
  CHECK(IsOwner(bucket)) << "rank " << options_.rank << " could miss the arrivals at bucket " << bucket;
  const CudaPeerBoard::Wait wait = {.word = Word(words_[bucket].arrived), .value = ValueOf(slot, all_ranks_)};
  return board_->Await(stream, {&wait, 1});
}

absl::Status GpuFlags::AwaitUpdates(CudaStream* stream, int slot, int first, int end) {
  std::vector<CudaPeerBoard::Wait> waits;
  for (int bucket = first; bucket < end; ++bucket) {
    waits.push_back({.word = Word(words_[bucket].updated), .value = ValueOf(slot, OwnersOf(bucket))});
  }
  return board_->Await(stream, waits);
}

absl::Status GpuFlags::Update(CudaStream* stream, int slot, int bucket, const CudaStepValues* values,
                              const OptimizerConfig& config, const CudaPeerUpdate& update) {
  CHECK(IsOwner(bucket)) << "rank " << options_.rank << " owns nothing of bucket " << bucket;
  const CudaPeerBoard::Update more = {.values = values,
                                      .findings = Finding(slot, bucket),
                                      .findings_stride = 1,
                                      .signal = {.done = OwnByte(words_[bucket].updated),
                                                 .value = static_cast<uint8_t>(ByteOf(slot)),
                                                 .is_void = Word(head_.is_void)}};
  if (update.rows.size() == 0) return board_->Store(stream, more.signal.done, more.signal.value);
  return board_->ApplyPeerUpdate(stream, config, update, more);
}

// A word of a ring has one writer, so its value is that of one byte.
CudaPeerBoard::Signal GpuFlags::SignalOf(int slot, int bucket, int signal) const {
  return {.done = reinterpret_cast<uint8_t*>(&RingWord(bucket, options_.rank, signal)),
          .value = static_cast<uint8_t>(ByteOf(slot)),
          .is_void = Word(head_.is_void)};
}

absl::Status GpuFlags::Signal(CudaStream* stream, int slot, int bucket, int signal) {
  const CudaPeerBoard::Signal one = SignalOf(slot, bucket, signal);
  return board_->Store(stream, one.done, one.value);
}

absl::Status GpuFlags::AwaitLeft(CudaStream* stream, int slot, int bucket, int signal) {
  const CudaPeerBoard::Wait wait = {.word = Word(RingWord(bucket, schedule_.Left(1), signal)), .value = ByteOf(slot)};
  return board_->Await(stream, {&wait, 1});
}

absl::Status GpuFlags::AwaitRight(CudaStream* stream, int slot) {
  std::vector<CudaPeerBoard::Wait> waits;
  for (int bucket = 0; bucket < trial_bucket(); ++bucket) {
    waits.push_back({.word = Word(RingWord(bucket, schedule_.right(), schedule_.hop_count())), .value = ByteOf(slot)});
  }
  return board_->Await(stream, waits);
}

absl::Status GpuFlags::RunHop(CudaStream* stream, int slot, int bucket, int hop, bool reads_gradient,
                              const CudaPeerHop& work) {
  if (work.rows.size() == 0) return Signal(stream, slot, bucket, hop + 1);
  // Each gradient is looked at once: where its rank adds it, or in the first hop, which sends it as it is.
  CudaPeerBoard::Hop more = {.signal = SignalOf(slot, bucket, hop + 1)};
  if (reads_gradient) more.left_finding = Finding(slot, bucket) + schedule_.Left(1);
  if (work.own != nullptr) more.own_finding = Finding(slot, bucket) + options_.rank;
  return board_->RunPeerHop(stream, work, more);
}

absl::Status GpuFlags::RunUpdate(CudaStream* stream, int slot, int bucket, int hop, bool reads_gradient,
                                 const CudaStepValues* values, const OptimizerConfig& config,
                                 const CudaPeerUpdate& update) {
  if (update.rows.size() == 0) return Signal(stream, slot, bucket, hop + 1);
  // The kernel's ranks are the left neighbour and this one.
  int64_t* const left = Finding(slot, bucket) + schedule_.Left(1);
  return board_->ApplyPeerUpdate(stream, config, update,
                                 {.values = values,
                                  .findings = left,
                                  .findings_stride = options_.rank - schedule_.Left(1),
                                  .first_finding = reads_gradient ? 0 : 1,
                                  .signal = SignalOf(slot, bucket, hop + 1)});
}

// Backward completes the buckets in their order, so that of the first one is named, as by an exchange that waits.
std::optional<StreamExchange::NonFinite> GpuFlags::FindNonFinite(int slot) const {
  for (int bucket = 0; bucket < trial_bucket(); ++bucket) {
    for (int rank = 0; rank < options_.rank_count; ++rank) {
      const int64_t found = std::atomic_ref(Finding(slot, bucket)[rank]).load();
      if (found != 0) return StreamExchange::NonFinite{.rank = rank, .element = found - 1};
    }
  }
  return std::nullopt;
}

std::vector<int> GpuFlags::Lacking(const std::atomic<uint64_t>& word, int slot, const std::vector<bool>& ranks) const {
  const uint64_t value = word.load();
  std::vector<int> lacking;
  for (int rank = 0; rank < options_.rank_count; ++rank) {
    const uint64_t byte = value >> (8 * rank) & 0xff;
    const bool is_there = byte == ByteOf(slot) || byte == ByteOf((slot + 1) % StreamExchange::kSlots);
    if (ranks[rank] && !is_there) lacking.push_back(rank);
  }
  return lacking;
}

// A GPU takes the buckets in their order, and its own bytes say how far it is.
GpuFlags::Lag GpuFlags::FindLag() const {
  if (options_.is_ring) return FindRingLag();
  const auto own_byte = [this](int bucket) { return words_[bucket].arrived.load() >> (8 * options_.rank) & 0xff; };
  const std::vector<int> own = {options_.rank};
  const uint64_t now = own_byte(0);
  if (now == 0) return {.ranks = own};
  const int slot = static_cast<int>(now) - 1;
  // An owner whose update lacks may itself wait for a rank that has not arrived.
  const auto lag_of = [&](int bucket) -> Lag {
    std::vector<int> ranks = Lacking(words_[bucket].arrived, slot, all_ranks_);
    if (ranks.empty()) ranks = Lacking(words_[bucket].updated, slot, OwnersOf(bucket));
    return {.slot = slot, .bucket = bucket, .ranks = std::move(ranks)};
  };
  for (int bucket = 0; bucket < trial_bucket(); ++bucket) {
    if (own_byte(bucket) != now) return {.slot = slot, .bucket = bucket, .ranks = own};
    if (!IsOwner(bucket)) continue;
    Lag lag = {.slot = slot, .bucket = bucket, .ranks = Lacking(words_[bucket].arrived, slot, all_ranks_)};
    if (!lag.ranks.empty()) return lag;
    const std::vector<int> updating = Lacking(words_[bucket].updated, slot, OwnersOf(bucket));
    if (std::ranges::find(updating, options_.rank) != updating.end()) {
      return {.slot = slot, .bucket = bucket, .ranks = own};
    }
  }
  for (int bucket = 0; bucket < trial_bucket(); ++bucket) {
    if (Lag lag = lag_of(bucket); !lag.ranks.empty()) return lag;
  }
  return {.slot = slot};
}

int GpuFlags::SignalsOf(int slot, int bucket, int rank) const {
  int count = 0;
  while (count < schedule_.signal_count()) {
    const uint64_t value = RingWord(bucket, rank, count).load();
    if (value != ByteOf(slot) && value != ByteOf((slot + 1) % StreamExchange::kSlots)) break;
    ++count;
  }
  return count;
}

// Hop k needs signal k of the left neighbour. A bucket begins behind the one before it, and a round behind the right
// neighbour's last signals of the round before.
std::optional<GpuFlags::RingPlace> GpuFlags::AwaitedBy(const RingPlace& place) const {
  const auto [slot, bucket, rank] = place;
  const int all = schedule_.signal_count();
  const int signals = SignalsOf(slot, bucket, rank);
  const RingSchedule schedule = {.rank = rank, .rank_count = options_.rank_count};
  if (signals > 0) {
    const int left = schedule.Left(1);
    if (signals == all || SignalsOf(slot, bucket, left) >= signals) return std::nullopt;
    return RingPlace{slot, bucket, left};
  }
  if (bucket > 0) {
    if (SignalsOf(slot, bucket - 1, rank) == all) return std::nullopt;
    return AwaitedBy({slot, bucket - 1, rank});
  }
  const int before = (slot + StreamExchange::kSlots - 1) % StreamExchange::kSlots;
  if (RingWord(0, rank, 0).load() != ByteOf(before)) return std::nullopt;  // the first round has none before
  for (int b = 0; b < trial_bucket(); ++b) {
    if (SignalsOf(before, b, rank) < all) return AwaitedBy({before, b, rank});
  }
  for (int b = 0; b < trial_bucket(); ++b) {
    if (SignalsOf(before, b, schedule.right()) < all) return RingPlace{before, b, schedule.right()};
  }
  return std::nullopt;
}

// The words change meanwhile, so the steps are counted.
int GpuFlags::LastOfChain(RingPlace place) const {
  for (int steps = 0; steps < 2 * options_.rank_count; ++steps) {
    const std::optional<RingPlace> next = AwaitedBy(place);
    if (!next.has_value()) break;
    place = *next;
  }
  return place.rank;
}

// As in a star, the own signals say in which round this rank's GPU is. The lag has the place where that GPU waits, and
// the rank that all wait for.
GpuFlags::Lag GpuFlags::FindRingLag() const {
  const int own = options_.rank;
  const uint64_t now = trial_bucket() == 0 ? 0 : RingWord(0, own, 0).load();
  if (now == 0) return {.ranks = {own}};
  const int slot = static_cast<int>(now) - 1;
  const auto has_own = [&](int bucket, int signal) { return RingWord(bucket, own, signal).load() == now; };
  for (int bucket = 0; bucket < trial_bucket(); ++bucket) {
    if (!has_own(bucket, 0)) return {.slot = slot, .bucket = bucket, .ranks = {own}};
    if (has_own(bucket, schedule_.hop_count())) continue;
    return {.slot = slot, .bucket = bucket, .ranks = {LastOfChain({slot, bucket, own})}};
  }
  for (int bucket = 0; bucket < trial_bucket(); ++bucket) {
    if (SignalsOf(slot, bucket, schedule_.right()) == schedule_.signal_count()) continue;
    return {.slot = slot, .bucket = bucket, .ranks = {LastOfChain({slot, bucket, schedule_.right()})}};
  }
  return {.slot = slot};
}

void GpuFlags::SayVoid() { head_.is_void.store(1); }
bool GpuFlags::is_void() const { return head_.is_void.load() != 0; }

void GpuFlags::Release() {
  CHECK(is_void());
  // A word that a GPU has stored a byte to since the last call is set again.
  const int slot =
      static_cast<int>(std::chrono::steady_clock::now().time_since_epoch() / kHold % StreamExchange::kSlots);
  for (int bucket = 0; bucket < bucket_count(); ++bucket) {
    words_[bucket].arrived.store(ValueOf(slot, all_ranks_));
    words_[bucket].updated.store(ValueOf(slot, OwnersOf(bucket)));
  }
  for (std::atomic<uint64_t>& word : ring_words_) word.store(ByteOf(slot));
}

}  // namespace starring
