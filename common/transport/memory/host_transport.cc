#include "common/transport/memory/host_transport.h"

#include <unistd.h>

#include <algorithm>

#include "common/base/check.h"

namespace starring {
namespace {

// A look at the network costs about as much as ten looks at the board (MPI enters its progress engine, TCP the kernel).
constexpr int kPollsPerLookAtNetwork = 16;

// How long a rank that waits for a count sleeps without a look at the network: the latency of a notice, and a hundredth
// of a core.
constexpr std::chrono::microseconds kNetworkInterval{1000};

// How often a Poll of a thread that looks and finds nothing compares the bell: half a microsecond. A caller that polls
// some dozen times before it yields its core so keeps it for as long as another rank needs for a small bucket: after a
// yield, another process may have the core for milliseconds.
constexpr int kLooksPerPoll = 8;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// With more ranks than cores the rank that is waited for may need this core.
int LooksPerPoll(int world_size) { return world_size <= sysconf(_SC_NPROCESSORS_ONLN) ? kLooksPerPoll : 0; }

}  // namespace

void HostTransport::Attach(HostBoard* board) {
  CHECK(board_ == nullptr);
  board_ = board;
  looks_per_poll_ = LooksPerPoll(world_size());
}

void HostTransport::Detach() {
  CHECK(waits_.empty());
  board_ = nullptr;
}

void HostTransport::PostWait(const std::atomic<int64_t>& count, int64_t target, Token token) {
  CHECK(board_ != nullptr);
  waits_.push_back({.count = &count, .target = target, .token = token});
  waits_for_counts_.store(true, std::memory_order_relaxed);
  // No bell will ring for a count that is there already. A count that completes after this look changes the bell, which
  // the last Poll has read before.
  if (waits_.back().IsOver()) has_completed_.store(true);
}

void HostTransport::PostSend(int peer, int tag, std::span<const std::byte> data, Token token) {
  network_->PostSend(peer, tag, data, token);
  // The peer may sleep on its bell, and would look at the network only a millisecond later.
  if (board_ != nullptr) board_->Ring(peer);
}

void HostTransport::PostReceive(int peer, int tag, std::span<std::byte> data, Token token) {
  network_->PostReceive(peer, tag, data, token);
}

absl::Status HostTransport::Poll(std::vector<Token>& completed) {
  if (board_ == nullptr) return network_->Poll(completed);
  has_completed_.store(false);
  seen_bell_.store(board_->bell());
  if (waits_.empty()) return network_->Poll(completed);
  const size_t before = completed.size();
  TakeCompleted(completed);
  if (is_looking_ && completed.size() == before) {
    const uint32_t seen = seen_bell_.load(std::memory_order_relaxed);
    for (int i = 0; i < looks_per_poll_ && board_->bell() == seen; ++i) Pause();
  }
  if (--polls_until_network_ > 0 && !slept_.load(std::memory_order_relaxed)) return absl::OkStatus();
  polls_until_network_ = kPollsPerLookAtNetwork;
  slept_.store(false, std::memory_order_relaxed);
  return network_->Poll(completed);
}

void HostTransport::TakeCompleted(std::vector<Token>& completed) {
  std::erase_if(waits_, [&](const CountWait& wait) {
    if (!wait.IsOver()) return false;
    completed.push_back(wait.token);
    return true;
  });
  if (waits_.empty()) waits_for_counts_.store(false, std::memory_order_relaxed);
}

void HostTransport::Wait(std::chrono::microseconds longest) {
  if (!waits_for_counts_.load(std::memory_order_relaxed)) return network_->Wait(longest);
  if (!has_completed_.load()) {
    board_->Sleep(seen_bell_.load(), std::min(longest, kNetworkInterval),
                  is_looking_ ? HostBoard::Sleeper::kLooking : HostBoard::Sleeper::kOther);
  }
  slept_.store(true, std::memory_order_relaxed);
}

void HostTransport::BeginLooking() {
  if (board_ == nullptr) return;
  is_looking_ = true;
  board_->BeginLooking();
}

void HostTransport::EndLooking() {
  if (board_ == nullptr) return;
  is_looking_ = false;
  board_->EndLooking(seen_bell_.load());
}

void HostTransport::WaitInBackground(std::chrono::microseconds longest) {
  if (board_ == nullptr) return network_->Wait(longest);
  const bool waits = waits_for_counts_.load(std::memory_order_relaxed);
  if (!has_completed_.load()) board_->Sleep(seen_bell_.load(), waits ? std::min(longest, kNetworkInterval) : longest);
  slept_.store(true, std::memory_order_relaxed);
}

void HostTransport::PassOn() {
  if (board_ != nullptr && has_completed_.load()) board_->RingHere();
}

// Either of the two sleeps may be the one to end.
void HostTransport::Wake() {
  network_->Wake();
  if (board_ != nullptr) board_->RingHere();
}

}  // namespace starring
