#include "common/transport/message_pump.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/running_clock.h"
#include "common/base/status.h"
#include "common/base/steady_time.h"
#include "common/watch/roll_call.h"

namespace starring {
namespace {

// A wait first polls without a pause, because a message between two cores takes a few microseconds. Then it yields
// between polls, because a rank that shares this core may be the one for which it waits. When it has polled for as long
// as a wake-up costs, it sleeps: a longer wait is for a slow network or a stuck rank, and must not cost a core.
constexpr int kHardPolls = 64;
constexpr std::chrono::microseconds kYieldingFor{50};

// Where messages move only while somebody polls (Transport::polls_for), it yields for longer, as long as nobody else
// wants the core: then a yield returns at once.
constexpr std::chrono::microseconds kPromptYieldMax{100};

// Looking for a notice costs as much as a poll (MPI_Improbe), and notices are rare: only one round in so many looks.
constexpr int kRoundsPerListening = 64;

// How long Abort waits for its notices to leave: a peer that is stuck takes none, and must not keep this rank.
constexpr std::chrono::seconds kAbortNoticeDeadline{2};
constexpr std::chrono::microseconds kAbortPause{200};

// The text of an abort notice: the code of the reason, one byte, and its message.
std::string AbortText(const absl::Status& why) {
  return absl::StrCat(std::string(1, static_cast<char>(why.code())), why.message());
}

// Why this rank ends when another one gives up. It takes over the code: mpirun passes on the exit code of whichever
// rank ends first, and the launcher decides by it whether a restart can help.
absl::Status GivenUp(const std::string& prefix, absl::string_view abort_text) {
  const int code = abort_text.empty() ? 0 : static_cast<unsigned char>(abort_text.front());
  const bool is_known = code > 0 && code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  if (!abort_text.empty()) abort_text.remove_prefix(1);
  return absl::Status(is_known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnavailable,
                      absl::StrCat(prefix, abort_text));
}

}  // namespace

MessagePump::Clock::time_point DeadlineAfter(absl::Duration duration) {
  // An infinite duration would overflow when it is added, and the deadline would already be over.
  return MessagePump::Clock::now() + absl::ToChronoNanoseconds(BoundedDeadline(duration));
}

MessagePump::MessagePump(Transport* transport, StallOptions stall, int server_count)
    : transport_(*transport),
      server_count_(server_count),
      watch_({.rank = transport_.rank(),
              .world_size = transport_.world_size(),
              .server_count = server_count,
              .stall = std::move(stall),
              .send = [this](int peer, NoticeKind kind, const std::string& text) { SendNotice(peer, kind, text); }}) {}

// An element of an unordered_map stays at its address while others are added, so the library may keep the pointers.
MessagePump::Token MessagePump::Send(int peer, ControlTag tag, std::span<const std::byte> data) {
  const Token token = BeginOperation();
  std::vector<std::byte>& copy = sent_[token];
  copy.assign(data.begin(), data.end());
  transport_.PostSend(peer, static_cast<int>(tag), copy, Name(token));
  return token;
}

MessagePump::Token MessagePump::Receive(int peer, ControlTag tag, int64_t bytes) {
  const Token token = BeginOperation();
  std::vector<std::byte>& data = received_[token];
  data.resize(bytes);
  transport_.PostReceive(peer, static_cast<int>(tag), data, Name(token));
  return token;
}

std::vector<std::byte> MessagePump::Take(Token token) {
  CHECK(IsComplete(token));
  const auto found = received_.find(token);
  CHECK(found != received_.end());
  std::vector<std::byte> data = std::move(found->second);
  received_.erase(found);
  return data;
}

MessagePump::Token MessagePump::SendFrom(int peer, ControlTag tag, std::span<const std::byte> data) {
  const Token token = BeginOperation();
  transport_.PostSend(peer, static_cast<int>(tag), data, Name(token));
  return token;
}

MessagePump::Token MessagePump::ReceiveInto(int peer, ControlTag tag, std::span<std::byte> data) {
  const Token token = BeginOperation();
  transport_.PostReceive(peer, static_cast<int>(tag), data, Name(token));
  return token;
}

MessagePump::Token MessagePump::BeginOperation() {
  pending_.insert(next_token_);
  return next_token_++;
}

void MessagePump::OnCompletion(uint64_t operation) {
  // A token is in some of these and not in others, and erasing what is not there has no effect. The buffer of a Receive
  // stays until Take.
  pending_.erase(operation);
  sent_.erase(operation);
  notices_.erase(operation);
}

absl::StatusOr<MessagePump::Progress> MessagePump::Pump(Listening listening) {
  // After a failure no completion may be handed on: the bucket machine would post the next operation.
  if (!failure_.ok()) return failure_;
  completed_.clear();
  if (absl::Status status = transport_.Poll(completed_); !status.ok()) return Fail(std::move(status));
  Progress progress = Progress::kNothing;
  for (const Transport::Token& token : completed_) {
    // A notice that has left is no progress: it would restart the clock of a rank that waits and asks.
    const bool is_notice = token.poster == this && notices_.contains(token.operation);
    token.poster->OnCompletion(token.operation);
    if (!is_notice) progress = Progress::kSome;
  }
  if (--rounds_until_listening_ <= 0 || listening == Listening::kAlways) {
    rounds_until_listening_ = kRoundsPerListening;
    RETURN_IF_ERROR(Listen());
  }
  return progress;
}

absl::Status MessagePump::PumpUntil(absl::FunctionRef<bool()> done, Clock::time_point deadline, const std::string& what,
                                    std::chrono::microseconds sleep_max) {
  if (done()) return absl::OkStatus();
  const bool is_watched = !what.empty();
  RunningClock clock(Clock::now());
  int polls = 0;  // since something arrived
  Clock::time_point idle_since;
  bool core_is_free = true;
  // A message may have ended the last sleep, and a notice would otherwise wait for many more sleeps.
  Listening listening = Listening::kNowAndThen;
  while (!done()) {
    ASSIGN_OR_RETURN(const Progress progress, Pump(std::exchange(listening, Listening::kNowAndThen)));
    // Something came: the next message is probably near, so polling begins again without a pause.
    if (progress == Progress::kSome) {
      if (is_watched && polls >= kHardPolls) watch_.EndWait(clock.Read(Clock::now()));
      polls = 0;
      continue;
    }
    // The clock costs more than a poll that finds nothing: it is read only when a wait has become one.
    if (++polls < kHardPolls) continue;
    const Clock::time_point now = clock.Read(Clock::now());
    if (polls == kHardPolls) {
      idle_since = now;
      core_is_free = true;
      if (is_watched) watch_.BeginWait(now);
    }
    // The deadline is looked at only in a pause. A wait in which messages keep arriving goes on: the ranks are slow,
    // but not stuck.
    if (now >= deadline) return absl::DeadlineExceededError("");
    if (is_watched) watch_.Look(what, now);
    const Clock::duration idle = now - idle_since;
    if (idle < kYieldingFor || (core_is_free && idle < transport_.polls_for())) {
      sched_yield();
      core_is_free = clock.Read(Clock::now()) - now < kPromptYieldMax;
    } else {
      transport_.Wait(
          std::chrono::ceil<std::chrono::microseconds>(std::min<Clock::duration>(sleep_max, deadline - now)));
      listening = Listening::kAlways;
    }
  }
  if (is_watched && polls >= kHardPolls) watch_.EndWait(clock.Read(Clock::now()));
  return absl::OkStatus();
}

absl::Status MessagePump::Fail(absl::Status status) {
  failure_ = std::move(status);
  return failure_;
}

// A notice is its kind, one byte, followed by a text, which for kAbort and kVerdict begins with the reason's code. At
// most one is taken: a peer that sends many must not keep this rank from its own work.
absl::Status MessagePump::Listen() {
  const Clock::time_point now = Clock::now();
  watch_.TellProgress(now);
  std::array<std::byte, kAbortNoticeBytesMax> notice;
  const auto received = transport_.TryReceive(static_cast<int>(ControlTag::kNotice), notice);
  if (!received.has_value()) return absl::OkStatus();
  rounds_until_listening_ = 0;  // there may be more: look again in the next round
  // It is not ours, and is ignored, as any notice is that cannot be read.
  if (received->bytes == 0) return absl::OkStatus();
  const std::string text(reinterpret_cast<const char*>(notice.data()) + 1, received->bytes - 1);
  const auto kind = static_cast<NoticeKind>(notice[0]);
  if (kind == NoticeKind::kAbort || kind == NoticeKind::kVerdict) {
    // A verdict names the rank that gave up first. If a rank that passes it on put its own name in front, the first
    // reason would be lost among copies.
    const bool is_first_hand = kind == NoticeKind::kAbort;
    const std::string prefix =
        is_first_hand ? absl::StrCat(ProcessName(received->peer, worker_count()), " gave up: ") : "";
    failure_ = GivenUp(prefix, text);
    peers_know_ = true;
    // Now, because the peer that cannot be told by the first rank hears at once that the others leave.
    if (transport_.loses_single_links()) TellAll(NoticeKind::kVerdict, failure_, received->peer);
    return failure_;
  }
  watch_.OnNotice(received->peer, kind, text, now);
  return absl::OkStatus();
}

void MessagePump::SendNotice(int peer, NoticeKind kind, std::string_view text) {
  std::string notice(1, static_cast<char>(kind));
  notice.append(text.substr(0, kAbortNoticeBytesMax - 1));
  notices_.insert(Send(peer, ControlTag::kNotice, std::as_bytes(std::span(notice))));
}

void MessagePump::TellAll(NoticeKind kind, const absl::Status& why, int except_peer) {
  const Token first = next_token_;
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer != rank() && peer != except_peer) SendNotice(peer, kind, AbortText(why));
  }
  for (Token token = first; token < next_token_; ++token) leaving_.insert(token);
}

absl::StatusOr<std::string> MessagePump::FindMissing(const std::string& if_all_wait) {
  const Clock::time_point now = Clock::now();
  watch_.CallRoll(now);
  // A deadline here is an answer, not an error: the silent ranks are what the caller wants to know. No `what`: the
  // stall that is being described would be reported a second time.
  (void)PumpUntil([&] { return watch_.RollIsComplete(); }, now + watch_.patience(), "");
  // The rank that no longer reaches another one needs its patience to be sure, and knows more than this one.
  if (failure_.ok() && watch_.AllWait()) (void)PumpUntil([] { return false; }, now + watch_.patience_for_others(), "");
  if (!failure_.ok()) return failure_;
  if (!if_all_wait.empty() && watch_.AllWait()) return if_all_wait;
  return watch_.DescribeMissing(Clock::now());
}

void MessagePump::Abort(const absl::Status& why) {
  CHECK(!why.ok());
  // An earlier failure is the cause, and this one a consequence.
  if (failure_.ok()) failure_ = why;
  if (!std::exchange(peers_know_, true)) TellAll(NoticeKind::kAbort, why, rank());
  // Only these notices are awaited. Older operations may never complete now.
  std::unordered_set<Token> leaving = std::exchange(leaving_, {});
  const Clock::time_point deadline = Clock::now() + kAbortNoticeDeadline;
  while (!leaving.empty() && Clock::now() < deadline) {
    completed_.clear();
    if (!transport_.Poll(completed_).ok()) return;
    // As in Pump, no completion is handed on.
    for (const Transport::Token& token : completed_) {
      if (token.poster == this) leaving.erase(token.operation);
    }
    if (completed_.empty()) std::this_thread::sleep_for(kAbortPause);
  }
}

}  // namespace starring
