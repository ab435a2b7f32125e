// A transport for tests of what uses its messages' memory.
#ifndef STARRING_TESTS_COMMON_REDUCE_EXCLUSIVE_TRANSPORT_H_
#define STARRING_TESTS_COMMON_REDUCE_EXCLUSIVE_TRANSPORT_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/transport/transport.h"
#include "gtest/gtest.h"

namespace starring {

// Fails if memory that an operation in flight uses is received into meanwhile, or a send's is written. May keep the
// first send to one rank until this rank has polled a number of times.
class ExclusiveTransport final : public Transport, private Transport::Poster {
 public:
  struct LateSend {
    int peer = -1;
    int polls = 0;
  };
  explicit ExclusiveTransport(std::unique_ptr<Transport> inner) : ExclusiveTransport(std::move(inner), LateSend()) {}
  ExclusiveTransport(std::unique_ptr<Transport> inner, LateSend late) : inner_(std::move(inner)), late_(late) {}
  // Called before each operation is posted.
  struct Posted {
    std::span<const std::byte> data;
    bool receives = false;
  };
  void set_on_post(std::function<void(const Posted&)> on_post) { on_post_ = std::move(on_post); }

  int rank() const override { return inner_->rank(); }
  int world_size() const override { return inner_->world_size(); }
  int tag_max() const override { return inner_->tag_max(); }
  void PostSend(int peer, int tag, std::span<const std::byte> data, Token token) override {
    const Token own = Begin({.data = data, .receives = false, .token = token});
    if (peer == late_.peer && kept_ == nullptr) {
      kept_ = [this, peer, tag, data, own] { inner_->PostSend(peer, tag, data, own); };
    } else {
      inner_->PostSend(peer, tag, data, own);
    }
  }
  void PostReceive(int peer, int tag, std::span<std::byte> data, Token token) override {
    inner_->PostReceive(peer, tag, data, Begin({.data = data, .receives = true, .token = token}));
  }
  absl::Status Poll(std::vector<Token>& completed) override {
    if (kept_ != nullptr && late_.polls >= 0 && late_.polls-- == 0) kept_();
    std::vector<Token> inner;
    const absl::Status status = inner_->Poll(inner);
    for (const Token& token : inner) {
      const Operation& operation = in_flight_.at(token.operation);
      if (!operation.receives) {
        // memcmp: under a sanitizer a loop over bytes takes most of the test.
        EXPECT_EQ(operation.sent.empty()
                      ? 0
                      : std::memcmp(operation.data.data(), operation.sent.data(), operation.sent.size()),
                  0)
            << "rank " << rank();
      }
      completed.push_back(operation.token);
      in_flight_.erase(token.operation);
    }
    return status;
  }
  void Wait(std::chrono::microseconds longest) override { inner_->Wait(longest); }
  void Wake() override { inner_->Wake(); }
  std::optional<Received> TryReceive(int tag, std::span<std::byte> data) override {
    return inner_->TryReceive(tag, data);
  }

 private:
  struct Operation {
    std::span<const std::byte> data;
    bool receives = false;
    Token token;
    std::vector<std::byte> sent = {};  // a copy of a send's data
  };
  Token Begin(Operation operation) {
    if (on_post_ != nullptr) on_post_({.data = operation.data, .receives = operation.receives});
    for (const auto& [number, other] : in_flight_) {
      const bool overlaps = !operation.data.empty() && !other.data.empty() &&
                            operation.data.data() < other.data.data() + other.data.size() &&
                            other.data.data() < operation.data.data() + operation.data.size();
      EXPECT_FALSE(overlaps && (operation.receives || other.receives)) << "rank " << rank();
    }
    if (!operation.receives) operation.sent.assign(operation.data.begin(), operation.data.end());
    in_flight_.emplace(++count_, std::move(operation));
    return {.poster = this, .operation = count_, .bytes = in_flight_.at(count_).token.bytes};
  }
  void OnCompletion(uint64_t) override {}

  const std::unique_ptr<Transport> inner_;
  LateSend late_;
  std::function<void(const Posted&)> on_post_;
  std::function<void()> kept_;  // from the first send to the late peer on
  std::map<uint64_t, Operation> in_flight_;
  uint64_t count_ = 0;
};

}  // namespace starring

#endif  // STARRING_TESTS_COMMON_REDUCE_EXCLUSIVE_TRANSPORT_H_
