#include "worker/exchange/ring/message_pump.h"

#include <sched.h>

#include <array>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/limits.h"
#include "common/status.h"

namespace starring {
namespace {

// A wait first polls hard (a message between two cores takes a few microseconds), then lets other processes of this
// core run between polls, and after a long while sleeps.
constexpr int kHardPolls = 64;
constexpr std::chrono::milliseconds kYieldingFor{20};
constexpr std::chrono::microseconds kSleep{50};

// Listening for a peer's end costs as much as a poll: only every so many.
constexpr int kRoundsPerListening = 64;

constexpr std::chrono::seconds kAbortNoticeDeadline{2};

}  // namespace

MessagePump::Clock::time_point DeadlineAfter(absl::Duration duration) {
  return MessagePump::Clock::now() + absl::ToChronoNanoseconds(duration);
}

MessagePump::MessagePump(std::unique_ptr<Transport> transport) : transport_(std::move(transport)) {}

MessagePump::Token MessagePump::Send(int peer, ControlTag tag, std::string_view data) {
  const Token token = NextToken();
  const std::string& copy = send_data_.emplace(token, data).first->second;
  pending_.insert(token);
  transport_->PostSend(peer, static_cast<int>(tag), std::as_bytes(std::span(copy)), token);
  return token;
}

MessagePump::Token MessagePump::SendFrom(int peer, ControlTag tag, std::span<const std::byte> data) {
  const Token token = NextToken();
  pending_.insert(token);
  transport_->PostSend(peer, static_cast<int>(tag), data, token);
  return token;
}

MessagePump::Token MessagePump::ReceiveInto(int peer, ControlTag tag, std::span<std::byte> data) {
  const Token token = NextToken();
  pending_.insert(token);
  transport_->PostReceive(peer, static_cast<int>(tag), data, token);
  return token;
}

absl::StatusOr<MessagePump::Progress> MessagePump::Pump() {
  if (!failure_.ok()) return failure_;
  completed_.clear();
  if (absl::Status status = transport_->Poll(completed_); !status.ok()) return Fail(std::move(status));
  for (const Token token : completed_) {
    if (token < BucketMachine::kTokenEnd) {
      machine_->OnCompletion(token);
    } else {
      pending_.erase(token);
      send_data_.erase(token);
    }
  }
  if (--rounds_until_listening_ <= 0) {
    rounds_until_listening_ = kRoundsPerListening;
    RETURN_IF_ERROR(ListenForAbort());
  }
  return completed_.empty() ? Progress::kNothing : Progress::kSome;
}

absl::Status MessagePump::PumpUntil(absl::FunctionRef<bool()> done, Clock::time_point deadline) {
  int polls = 0;
  Clock::time_point idle_since;
  while (!done()) {
    ASSIGN_OR_RETURN(const Progress progress, Pump());
    if (progress == Progress::kSome) {
      polls = 0;
      continue;
    }
    if (++polls < kHardPolls) continue;
    const Clock::time_point now = Clock::now();
    if (polls == kHardPolls) idle_since = now;
    if (now >= deadline) return absl::DeadlineExceededError("");
    if (now - idle_since < kYieldingFor) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(kSleep);
    }
  }
  return absl::OkStatus();
}

absl::Status MessagePump::Fail(absl::Status status) {
  failure_ = std::move(status);
  return failure_;
}

absl::Status MessagePump::ListenForAbort() {
  std::array<std::byte, kAbortNoticeBytesMax> notice;
  const auto received = transport_->TryReceive(static_cast<int>(ControlTag::kAbort), notice);
  if (!received.has_value()) return absl::OkStatus();
  peers_know_ = true;
  const std::string why(reinterpret_cast<const char*>(notice.data()), received->bytes);
  return Fail(absl::UnavailableError(absl::StrCat("rank ", received->peer, " gave up: ", why)));
}

void MessagePump::Abort(const absl::Status& why) {
  CHECK(!why.ok());
  if (failure_.ok()) failure_ = why;
  if (std::exchange(peers_know_, true)) return;
  const std::string notice(why.message().substr(0, kAbortNoticeBytesMax));
  std::unordered_set<Token> leaving;
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer != rank()) leaving.insert(Send(peer, ControlTag::kAbort, notice));
  }
  const Clock::time_point deadline = Clock::now() + kAbortNoticeDeadline;
  while (!leaving.empty() && Clock::now() < deadline) {
    completed_.clear();
    if (!transport_->Poll(completed_).ok()) return;
    // Nothing is handed to the machine any more: it might post.
    for (const Token token : completed_) leaving.erase(token);
    sched_yield();
  }
}

}  // namespace starring
