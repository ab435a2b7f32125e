// A transport of ranks that are on one host: another transport, for messages, and a host board (host_board.h), on which
// ranks wait without messages. To its users a wait for a count is an operation as a receive is.
//
// While such a wait is posted, the board is looked at in every Poll and the network less often; Wait then sleeps on the
// bell and lets the network be looked at every millisecond, so that a rank that gives up or dies is noticed, too.
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

  // `board` lives until Detach or the end. No other thread may be in a method, and no wait for a count posted.
  void Attach(HostBoard* board);
  void Detach();

  // The operation completes when `count` is at least `target`. One of the board's counts.
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
    return waits_for_counts_.load(std::memory_order_relaxed) ? std::chrono::microseconds(0) : network_->polls_for();
  }
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

  void TakeCompleted(std::vector<Token>& completed);

  const std::unique_ptr<Transport> network_;
  HostBoard* board_ = nullptr;
  bool is_looking_ = false;
  int looks_per_poll_ = 0;
  std::vector<CountWait> waits_;  // in the order posted; at most two for each bucket
  int polls_until_network_ = 0;

  // For Wait, which is called without a lock.
  std::atomic<bool> waits_for_counts_ = false;
  std::atomic<uint32_t> seen_bell_ = 0;      // before the last look at the counts
  std::atomic<bool> has_completed_ = false;  // an operation that no Poll has returned yet
  std::atomic<bool> slept_ = false;          // since the last Poll
};

}  // namespace starring

#endif  // STARRING_COMMON_TRANSPORT_MEMORY_HOST_TRANSPORT_H_
