#include "common/transport/peer_watch.h"

#include <algorithm>
#include <span>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace starring {
namespace {

using std::chrono::milliseconds;

// A rank tells its neighbours its progress at most this often.
constexpr milliseconds kTellInterval(250);
// A rank that waits checks this often whether a rank is to be asked or named.
constexpr milliseconds kLookInterval(20);
// How long the roll call of an expired deadline waits for answers: a process that lives answers within a visit of its
// background thread, and the job is over anyway. A rank that all have answered gives the others so much longer.
constexpr milliseconds kRollCallPatience(1000);
constexpr milliseconds kOthersPatience(500);
constexpr int64_t kSilent = -1;
// The root of a stall has the same words (RollCall::FindRoot).
constexpr char kAllRanksWait[] = "all ranks answer, and wait in the exchange: look at the network between them";

milliseconds Since(PeerWatch::Time then, PeerWatch::Time now) {
  return std::chrono::duration_cast<milliseconds>(now - then);
}

// Phase, step, bucket, and the milliseconds since the phase began.
std::string EncodeWork(const WorkState& state, milliseconds since) {
  return absl::StrCat(static_cast<int>(state.phase), " ", state.step, " ", state.bucket, " ", since.count());
}
constexpr size_t kWorkNumbers = 4;
constexpr milliseconds kAgeMax{int64_t{1} << 40};  // decades: more is no age, and would overflow

std::optional<WorkState> DecodeWork(std::span<const int64_t> numbers) {
  if (numbers.size() < kWorkNumbers || numbers[0] < 0 || numbers[0] >= kWorkPhaseCount || numbers[3] < 0 ||
      numbers[3] > kAgeMax.count()) {
    return std::nullopt;
  }
  return WorkState{.phase = static_cast<WorkPhase>(numbers[0]),
                   .step = numbers[1],
                   .bucket = static_cast<int>(numbers[2]),
                   .age = milliseconds(numbers[3])};
}

// The numbers in `text`, separated by spaces; empty if it contains anything else.
std::vector<int64_t> Numbers(std::string_view text) {
  std::vector<int64_t> numbers;
  for (const absl::string_view word : absl::StrSplit(absl::string_view(text.data(), text.size()), ' ')) {
    int64_t number = 0;
    if (!absl::SimpleAtoi(word, &number)) return {};
    numbers.push_back(number);
  }
  return numbers;
}

}  // namespace

PeerWatch::PeerWatch(Options options)
    : options_(std::move(options)),
      worker_count_(options_.world_size - options_.server_count),
      roll_(options_.world_size, options_.stall.times, worker_count_),
      report_(options_.stall.say),
      calls_(options_.world_size, kSilent) {}

// A rank that waits for others is in the exchange, whatever its phase says: an evaluation waits in a sum, too.
WorkState PeerWatch::MyWork(Time now) const {
  WorkState work = options_.stall.progress == nullptr ? WorkState() : options_.stall.progress->Read(now);
  if (waiting_since_.has_value() && !(is_busy_ && is_busy_())) {
    work.phase = WorkPhase::kExchange;
    work.age = Since(*waiting_since_, now);
  }
  return work;
}

void PeerWatch::TellProgress(Time now) {
  if (options_.stall.progress == nullptr || options_.world_size == 1 || now < next_tell_) return;
  next_tell_ = now + kTellInterval;
  const WorkState work = MyWork(now);
  // A rank whose progress has not changed sends nothing: messages to a stopped process would pile up.
  const std::pair<WorkPhase, int64_t> news(work.phase, work.step);
  if (news == last_told_) return;
  last_told_ = news;
  std::set<int> told = Neighbours();
  // Every server finds the root of a stall by itself, so each server gets the progress.
  if (options_.rank < worker_count_) {
    for (int server = worker_count_; server < options_.world_size; ++server) told.insert(server);
  }
  for (const int peer : told) options_.send(peer, NoticeKind::kProgress, EncodeWork(work, work.age));
}

// It is a set, because with two workers both neighbours are one rank.
std::set<int> PeerWatch::Neighbours() const {
  if (options_.rank >= worker_count_ || worker_count_ == 1) return {};
  return {(options_.rank + worker_count_ - 1) % worker_count_, (options_.rank + 1) % worker_count_};
}

std::string PeerWatch::DescribeMe(Time now) const {
  const WorkState mine = MyWork(now);
  // The answer includes the last reports of the neighbours. If a neighbour is stopped, the caller learns where it was.
  std::string text = absl::StrCat(call_count_, " ", EncodeWork(mine, mine.age));
  for (const int peer : Neighbours()) {
    const auto& heard = roll_.heard(peer);
    if (heard.has_value()) absl::StrAppend(&text, " ", peer, " ", EncodeWork(heard->state, Since(heard->at, now)));
  }
  return text;
}

void PeerWatch::OnNotice(int peer, NoticeKind kind, std::string_view text, Time now) {
  switch (kind) {
    case NoticeKind::kRollCall:
      options_.send(peer, NoticeKind::kHere, DescribeMe(now));
      break;
    case NoticeKind::kHere:
      OnHere(peer, text, now);
      break;
    case NoticeKind::kProgress: {
      const std::vector<int64_t> numbers = Numbers(text);
      if (const auto work = DecodeWork(numbers); work.has_value()) Hear(peer, *work, now);
      break;
    }
    case NoticeKind::kAbort:
    case NoticeKind::kVerdict:
      break;
  }
}

void PeerWatch::Hear(int peer, const WorkState& work, Time now) {
  roll_.OnHeard(peer, work, now);
  if (options_.stall.on_heard != nullptr) options_.stall.on_heard(peer, work);
}

// The text has the peer's call count and progress, then for each of its neighbours the neighbour's rank, the progress
// that it last reported, and how long ago that was.
void PeerWatch::OnHere(int peer, std::string_view text, Time now) {
  const std::vector<int64_t> numbers = Numbers(text);
  std::span<const int64_t> rest(numbers);
  // A text that does not parse is ignored. The rank then counts as silent, which ends in a message, not in a crash.
  if (rest.size() < 1 + kWorkNumbers) return;
  const auto work = DecodeWork(rest.subspan(1, kWorkNumbers));
  if (!work.has_value() || rest[0] < 0) return;
  calls_[peer] = rest[0];
  Hear(peer, *work, now);
  for (rest = rest.subspan(1 + kWorkNumbers); rest.size() >= 1 + kWorkNumbers; rest = rest.subspan(1 + kWorkNumbers)) {
    const int64_t rank = rest[0];
    auto hearsay = DecodeWork(rest.subspan(1, kWorkNumbers));
    // A second-hand report about this rank is older than this rank's own state.
    if (rank < 0 || rank >= options_.world_size || rank == options_.rank || !hearsay.has_value()) continue;
    // Ages travel instead of times, because the clocks of two hosts do not agree. The age is that of the second-hand
    // report.
    const milliseconds ago = std::exchange(hearsay->age, milliseconds(0));
    roll_.OnHearsay(static_cast<int>(rank), *hearsay, now - ago);
  }
}

void PeerWatch::EndWait(Time now) {
  waiting_since_.reset();
  report_.Close(0, now);
}

void PeerWatch::Look(const std::string& what, Time now) {
  const StallTimes& times = options_.stall.times;
  if (!times.enabled() || !waiting_since_.has_value()) return;
  const auto waited = now - *waiting_since_;
  if (waited < times.ask_after() || now < next_look_) return;
  next_look_ = now + kLookInterval;
  // This rank takes part in its own roll, as one that waits: it needs no question to itself.
  roll_.OnHeard(options_.rank, MyWork(now), now);
  for (const int peer : roll_.TakeRanksToAsk(now)) options_.send(peer, NoticeKind::kRollCall, "");
  if (waited < times.report_after || report_.IsOpen(0)) return;
  if (const auto root = roll_.FindRoot(now); root.has_value()) {
    report_.Open(0, *waiting_since_, StallSentence(waited, what, root->sentence));
  }
}

milliseconds PeerWatch::patience() const { return kRollCallPatience; }
milliseconds PeerWatch::patience_for_others() const { return kRollCallPatience + kOthersPatience; }

void PeerWatch::CallRoll(Time now) {
  calls_.assign(options_.world_size, kSilent);
  calls_[options_.rank] = call_count_;
  for (int peer = 0; peer < options_.world_size; ++peer) {
    if (peer != options_.rank) options_.send(peer, NoticeKind::kRollCall, "");
  }
  (void)roll_.TakeRanksToAsk(now);
}

bool PeerWatch::RollIsComplete() const { return std::find(calls_.begin(), calls_.end(), kSilent) == calls_.end(); }

std::vector<int> PeerWatch::FindBehind() const {
  // All ranks make the same calls in the same order, so the others wait for the ranks that have made the fewest calls.
  // Servers make no calls.
  const int64_t fewest = *std::min_element(calls_.begin(), calls_.begin() + worker_count_);
  std::vector<int> behind;
  for (int peer = 0; peer < worker_count_; ++peer) {
    const auto& heard = roll_.heard(peer);
    const bool waits = peer == options_.rank || (heard.has_value() && heard->state.phase == WorkPhase::kExchange);
    if (calls_[peer] == fewest && fewest < MostCalls() && !waits) behind.push_back(peer);
  }
  return behind;
}

int64_t PeerWatch::MostCalls() const {
  return options_.rank < worker_count_ ? call_count_
                                       : *std::max_element(calls_.begin(), calls_.begin() + worker_count_);
}

bool PeerWatch::AllWait() const { return RollIsComplete() && FindBehind().empty(); }

std::string PeerWatch::DescribeMissing(Time now) const {
  std::vector<int> silent;
  for (int peer = 0; peer < options_.world_size; ++peer) {
    if (calls_[peer] == kSilent) silent.push_back(peer);
  }
  if (silent.size() == 1) return roll_.DescribeSilent(silent[0], now);
  if (!silent.empty()) return absl::StrCat(NameProcesses(silent, worker_count_), " do not answer");
  const std::vector<int> behind = FindBehind();
  if (behind.empty()) return kAllRanksWait;
  std::string work;
  if (behind.size() == 1) work = absl::StrCat(" (", roll_.DescribeBusy(behind[0], now), ")");
  const int64_t calls = MostCalls() - calls_[behind[0]];
  return absl::StrCat(NameRanks(behind), behind.size() == 1 ? " lives but is " : " live but are ", calls,
                      calls == 1 ? " call behind" : " calls behind", work,
                      ": raise the deadline if it computes that long");
}

}  // namespace starring
