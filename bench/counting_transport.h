// A transport that counts the messages that are sent by way of it, for benchmarks.
//
// Thread safety: as the other transport; any thread may call sent().
#ifndef STARRING_BENCH_COUNTING_TRANSPORT_H_
#define STARRING_BENCH_COUNTING_TRANSPORT_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/transport/transport.h"

namespace starring {

class CountingTransport final : public Transport {
 public:
  // `sent` outlives the transport.
  CountingTransport(std::unique_ptr<Transport> network, std::atomic<int64_t>* sent)
      : network_(std::move(network)), sent_(*sent) {}

  int rank() const override { return network_->rank(); }
  int world_size() const override { return network_->world_size(); }
  int tag_max() const override { return network_->tag_max(); }
  void PostSend(int peer, int tag, std::span<const std::byte> data, Token token) override {
    sent_.fetch_add(1, std::memory_order_relaxed);
    network_->PostSend(peer, tag, data, token);
  }
  void PostReceive(int peer, int tag, std::span<std::byte> data, Token token) override {
    network_->PostReceive(peer, tag, data, token);
  }
  absl::Status Poll(std::vector<Token>& completed) override { return network_->Poll(completed); }
  void Wait(std::chrono::microseconds longest) override { network_->Wait(longest); }
  std::chrono::microseconds polls_for() const override { return network_->polls_for(); }
  bool loses_single_links() const override { return network_->loses_single_links(); }
  void Wake() override { network_->Wake(); }
  [[nodiscard]] std::optional<Received> TryReceive(int tag, std::span<std::byte> data) override {
    return network_->TryReceive(tag, data);
  }

 private:
  const std::unique_ptr<Transport> network_;
  std::atomic<int64_t>& sent_;
};

}  // namespace starring

#endif  // STARRING_BENCH_COUNTING_TRANSPORT_H_
