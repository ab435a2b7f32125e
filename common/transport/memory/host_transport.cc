#include "common/transport/memory/host_transport.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/copy_array.h"
#include "common/base/status.h"

namespace starring {
namespace {

// A look at the network costs about as much as ten looks at the board (MPI enters its progress engine, TCP the kernel).
constexpr int kPollsPerLookAtNetwork = 16;

// How long a rank that waits for a count sleeps without a look at the network: the latency of a notice, and a hundredth
// of a core.
constexpr std::chrono::microseconds kNetworkInterval{1000};
// The same while messages of the network are under way: a long array must not wait for the bell.
constexpr std::chrono::microseconds kBusyNetworkInterval{100};

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
  taken_bell_ = board->bell() - 1;  // messages may have come already
  looks_per_poll_ = LooksPerPoll(world_size());
}

void HostTransport::Detach() {
  CHECK(!HasBoardOperations());
  board_ = nullptr;
}

void HostTransport::PostWait(const std::atomic<int64_t>& count, int64_t target, Token token) {
  CHECK(board_ != nullptr);
  waits_.push_back({.count = &count, .target = target, .token = token});
  NoteOperations();
  // No bell will ring for a count that is there already. A count that completes after this look changes the bell, which
  // the last Poll has read before.
  if (waits_.back().IsOver()) has_completed_.store(true);
}

void HostTransport::PostSend(int peer, int tag, std::span<const std::byte> data, Token token) {
  if (IsForBoard(tag, data.size())) return SendOnBoard(peer, tag, data, token);
  CountNetwork(1);
  network_->PostSend(peer, tag, data, token);
  // The peer may sleep on its bell, and would look at the network only a millisecond later.
  if (board_ != nullptr) board_->Ring(peer);
}

void HostTransport::SendOnBoard(int peer, int tag, std::span<const std::byte> data, Token token) {
  // A rank that has left takes nothing from the board.
  network_->NeedPeer(peer);
  // A message must not overtake one that waits for a place in the same queue.
  if (std::ranges::find(unsent_, peer, &Message::peer) == unsent_.end() && board_->Send(peer, tag, data)) {
    done_.push_back(token);
    has_completed_.store(true);
  } else {
    unsent_.push_back({.peer = peer, .tag = tag, .data = {data.begin(), data.end()}, .token = token});
  }
  NoteOperations();
}

void HostTransport::SendRest() {
  std::vector<int> full;
  for (auto next = unsent_.begin(); next != unsent_.end();) {
    if (std::ranges::find(full, next->peer) == full.end() && board_->Send(next->peer, next->tag, next->data)) {
      done_.push_back(next->token);
      next = unsent_.erase(next);
    } else {
      full.push_back(next->peer);
      ++next;
    }
  }
}

void HostTransport::PostReceive(int peer, int tag, std::span<std::byte> data, Token token) {
  CHECK(board_ == nullptr || token.bytes == nullptr) << "tag " << tag;
  if (!IsForBoard(tag, data.size())) {
    CountNetwork(1);
    return network_->PostReceive(peer, tag, data, token);
  }
  const auto found =
      std::ranges::find_if(arrived_, [&](const Message& one) { return one.peer == peer && one.tag == tag; });
  if (found == arrived_.end()) {
    receives_.push_back({.peer = peer, .tag = tag, .data = data, .token = token});
  } else {
    CopyInto({.peer = peer, .tag = tag, .data = data, .token = token}, found->data);
    done_.push_back(token);
    has_completed_.store(true);
    arrived_.erase(found);
  }
  NoteOperations();
}

void HostTransport::CopyInto(const Receive& receive, std::span<const std::byte> data) {
  if (data.size() == receive.data.size()) return CopyArray(data, receive.data);
  damage_ = absl::InternalError(absl::StrCat("rank ", receive.peer, " has sent ", data.size(), " bytes with tag ",
                                             receive.tag, ", this rank expects ", receive.data.size(),
                                             ": all ranks must run the same build"));
}

void HostTransport::OnMessage(int from, int tag, std::span<const std::byte> data, std::vector<Token>& completed) {
  const auto found =
      std::ranges::find_if(receives_, [&](const Receive& one) { return one.peer == from && one.tag == tag; });
  if (found == receives_.end()) {
    arrived_.push_back({.peer = from, .tag = tag, .data = {data.begin(), data.end()}, .token = {}});
    return;
  }
  CopyInto(*found, data);
  completed.push_back(found->token);
  receives_.erase(found);
}

absl::Status HostTransport::Poll(std::vector<Token>& completed) {
  if (board_ == nullptr) return network_->Poll(completed);
  has_completed_.store(false);
  seen_bell_.store(board_->bell());
  const size_t before = completed.size();
  // Before the look: a look that completes the last operation needs none at the network, which costs a system call.
  const bool waits_for_board = HasBoardOperations();
  TakeCompleted(completed);
  if (waits_for_board && damage_.ok()) {
    if (is_looking_ && completed.size() == before) {
      const uint32_t seen = seen_bell_.load(std::memory_order_relaxed);
      for (int i = 0; i < looks_per_poll_ && board_->bell() == seen; ++i) Pause();
    }
    if (--polls_until_network_ > 0 && !slept_.load(std::memory_order_relaxed)) return absl::OkStatus();
  }
  polls_until_network_ = kPollsPerLookAtNetwork;
  slept_.store(false, std::memory_order_relaxed);
  return PollNetwork(completed);
}

// A rank that leaves the job says so on the network, after its last message on the board. So the board is looked at
// once more before such a rank is missed. The network also moves after damage to the board: this rank's reason to give
// up leaves by it.
absl::Status HostTransport::PollNetwork(std::vector<Token>& completed) {
  const size_t before = completed.size();
  RETURN_IF_ERROR(network_->Poll(completed));
  CountNetwork(-static_cast<int64_t>(completed.size() - before));
  TakeCompleted(completed);
  for (const Receive& receive : receives_) network_->NeedPeer(receive.peer);
  for (const Message& message : unsent_) network_->NeedPeer(message.peer);
  return damage_;
}

// Without a board no Wait asks for the count.
void HostTransport::CountNetwork(int64_t change) {
  if (board_ == nullptr || change == 0) return;
  // Operations may have been posted before the board was attached.
  const int64_t count = network_count_.load(std::memory_order_relaxed) + change;
  network_count_.store(std::max<int64_t>(count, 0), std::memory_order_relaxed);
}

void HostTransport::TakeCompleted(std::vector<Token>& completed) {
  const size_t before = completed.size();
  std::erase_if(waits_, [&](const CountWait& wait) {
    if (!wait.IsOver()) return false;
    completed.push_back(wait.token);
    return true;
  });
  // Every message rings, and so does a place that gets free in a queue.
  if (const uint32_t bell = board_->bell(); bell != taken_bell_) {
    taken_bell_ = bell;
    damage_.Update(board_->Take(
        [&](int from, int tag, std::span<const std::byte> data) { OnMessage(from, tag, data, completed); }));
    if (!unsent_.empty()) SendRest();
  }
  if (!done_.empty()) {
    completed.insert(completed.end(), done_.begin(), done_.end());
    done_.clear();
  }
  if (completed.size() != before) NoteOperations();
}

void HostTransport::Wait(std::chrono::microseconds longest) {
  if (!waits_for_board_.load(std::memory_order_relaxed)) return network_->Wait(longest);
  if (!is_woken_.exchange(false) && !has_completed_.load()) {
    board_->Sleep(seen_bell_.load(), std::min(longest, Interval()),
                  is_looking_ ? HostBoard::Sleeper::kLooking : HostBoard::Sleeper::kOther);
  }
  slept_.store(true, std::memory_order_relaxed);
}

std::chrono::microseconds HostTransport::Interval() const {
  return network_count_.load(std::memory_order_relaxed) > 0 ? kBusyNetworkInterval : kNetworkInterval;
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
  const bool waits = waits_for_board_.load(std::memory_order_relaxed);
  if (!has_completed_.load()) board_->Sleep(seen_bell_.load(), waits ? std::min(longest, Interval()) : longest);
  slept_.store(true, std::memory_order_relaxed);
}

void HostTransport::PassOn() {
  if (board_ != nullptr && has_completed_.load()) board_->RingHere();
}

// Either of the two sleeps may be the one to end.
void HostTransport::Wake() {
  network_->Wake();
  if (board_ == nullptr) return;
  // A Poll between now and the Wait would take the bell for seen.
  is_woken_.store(true);
  board_->RingHere();
}

}  // namespace starring
