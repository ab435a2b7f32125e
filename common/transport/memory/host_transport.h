// A transport of processes that are on one host: another transport, the *network*, and a host board (host_board.h). The
// board carries short messages and counts for which ranks wait. To its users a wait for a count is an operation as a
// receive is.
//
// While an operation of the board is posted, the board is looked at in every Poll and the network less often; Wait then
// sleeps on the bell and lets the network be looked at every millisecond, so that a rank that gives up or dies is
// noticed, too. While messages of the network are under way as well, it looks ten times as often.
//
// Two threads of a rank use it: one *looks* while it waits (BeginLooking), the other one sleeps in the meantime.
//
// Until Attach it is the other transport and nothing more.
#ifndef STARRING_COMMON_TRANSPORT_MEMORY_HOST_TRANSPORT_H_
#define STARRING_COMMON_TRANSPORT_MEMORY_HOST_TRANSPORT_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/transport/memory/host_board.h"
#include "common/transport/transport.h"

namespace starring {

class HostTransport final : public Transport {
 public:
  explicit HostTransport(std::unique_ptr<Transport> network) : network_(std::move(network)) {}

  // From Attach on, messages of at most HostBoard::kMessageBytesMax bytes, but for notices, are the board's. `board`
  // lives until Detach or the end. No other thread may be in a method, and no operation posted that is the board's. All
  // ranks attach before they post such a receive. The length says which way a message goes, so messages that may be
  // shorter than their receives are refused.
  void Attach(HostBoard* board);
  void Detach();

  // The operation completes when `count` is at least `target`. One of the board's counts, or one of this process, whose
  // writer rings for this rank afterwards (HostBoard::Ring).
  void PostWait(const std::atomic<int64_t>& count, int64_t target, Token token);

  // Between the two, the thread that holds the lock of Poll polls without long pauses, but for those in Wait. No other
  // thread is woken by a bell meanwhile.
  void BeginLooking();
  void EndLooking();
  // Wait for the other thread. With nothing to wait for it sleeps until the bell rings, and not until a message comes.
  void WaitInBackground(std::chrono::microseconds longest);
  // Wakes the other thread if an operation has completed that no Poll has returned.
  void PassOn();

  int rank() const override { return network_->rank(); }
  int world_size() const override { return network_->world_size(); }
  int tag_max() const override { return network_->tag_max(); }
  bool loses_single_links() const override { return network_->loses_single_links(); }
  void PostSend(int peer, int tag, std::span<const std::byte> data, Token token) override;
  void PostReceive(int peer, int tag, std::span<std::byte> data, Token token) override;
  absl::Status Poll(std::vector<Token>& completed) override;
  void Wait(std::chrono::microseconds longest) override;
  void Wake() override;
  std::chrono::microseconds polls_for() const override {
    const bool sleeps =
        waits_for_board_.load(std::memory_order_relaxed) && network_count_.load(std::memory_order_relaxed) == 0;
    return sleeps ? std::chrono::microseconds(0) : network_->polls_for();
  }
  void NeedPeer(int peer) override { network_->NeedPeer(peer); }
  [[nodiscard]] std::optional<Received> TryReceive(int tag, std::span<std::byte> data) override {
    return network_->TryReceive(tag, data);
  }

 private:
  struct CountWait {
    const std::atomic<int64_t>* count = nullptr;
    int64_t target = 0;
    Token token;
    bool IsOver() const { return count->load(std::memory_order_acquire) >= target; }
  };

  // A short message: one that has come and is not received yet, or one that waits for a place in a queue.
  struct Message {
    int peer = 0;
    int tag = 0;
    std::vector<std::byte> data;
    Token token;  // of a send
  };
  struct Receive {
    int peer = 0;
    int tag = 0;
    std::span<std::byte> data;
    Token token;
  };

  bool IsForBoard(int tag, size_t bytes) const {
    return board_ != nullptr && tag != kNoticeTag && bytes <= HostBoard::kMessageBytesMax;
  }
  bool HasBoardOperations() const {
    return !waits_.empty() || !receives_.empty() || !unsent_.empty() || !done_.empty();
  }
  void NoteOperations() { waits_for_board_.store(HasBoardOperations(), std::memory_order_relaxed); }
  void SendOnBoard(int peer, int tag, std::span<const std::byte> data, Token token);
  void SendRest();
  void CopyInto(const Receive& receive, std::span<const std::byte> data);
  void OnMessage(int from, int tag, std::span<const std::byte> data, std::vector<Token>& completed);
  absl::Status PollNetwork(std::vector<Token>& completed);
  void CountNetwork(int64_t change);
  void TakeCompleted(std::vector<Token>& completed);
  // The longest sleep without a look at the network, while an operation of the board is posted.
  std::chrono::microseconds Interval() const;

  const std::unique_ptr<Transport> network_;
  HostBoard* board_ = nullptr;
  bool is_looking_ = false;
  int looks_per_poll_ = 0;
  std::vector<CountWait> waits_;   // in the order posted; at most three for each bucket
  std::vector<Receive> receives_;  // in the order posted
  std::vector<Message> arrived_;   // before their receives were posted, in order
  std::deque<Message> unsent_;     // their queues were full
  std::vector<Token> done_;        // complete, and not returned by Poll yet
  absl::Status damage_;            // of the board
  uint32_t taken_bell_ = 0;        // before the last look into the queues
  int polls_until_network_ = 0;

  // For Wait, which is called without a lock.
  std::atomic<bool> waits_for_board_ = false;
  std::atomic<uint32_t> seen_bell_ = 0;      // before the last look at the board
  std::atomic<bool> has_completed_ = false;  // an operation that no Poll has returned yet
  std::atomic<bool> slept_ = false;          // since the last Poll
  std::atomic<bool> is_woken_ = false;       // and no Wait has returned since
  std::atomic<int64_t> network_count_ = 0;   // operations of the network
};

}  // namespace starring

#endif  // STARRING_COMMON_TRANSPORT_MEMORY_HOST_TRANSPORT_H_
