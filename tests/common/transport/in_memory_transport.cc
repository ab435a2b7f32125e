#include "tests/common/transport/in_memory_transport.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#include "common/base/check.h"

namespace starring {
namespace {

// An operation that can complete does so at random in one of the next polls, so a wait is only a pause.
constexpr std::chrono::microseconds kPause{100};

}  // namespace

class InMemoryNetwork::RankTransport final : public MpiTransport {
 public:
  RankTransport(InMemoryNetwork* network, int rank) : network_(*network), rank_(rank) {}

  // Nothing may touch this rank's memory any more.
  ~RankTransport() override { network_.Disconnect(rank_); }

  int rank() const override { return rank_; }
  int world_size() const override { return network_.world_size_; }
  int tag_max() const override { return 32767; }  // the least that the MPI standard allows
  bool moves_device_memory() const override { return network_.moves_device_memory_[rank_]; }
  bool loses_single_links() const override { return network_.loses_single_links_; }

  void PostSend(int peer, int tag, std::span<const std::byte> data, Token token) override {
    std::lock_guard lock(network_.mutex_);
    CountPosted();
    network_.message_bytes_max_ = std::max(network_.message_bytes_max_, std::ssize(data));
    auto& sending = network_.sending_[rank_];
    sending.emplace(token.poster, token.operation);
    network_.sends_in_flight_max_ = std::max(network_.sends_in_flight_max_, static_cast<int>(sending.size()));
    Send send = {.from = rank_, .to = peer, .tag = tag, .copy = {}, .data = data, .token = token};
    if (network_.Chance(50)) {
      send.eager = true;
      send.copy.assign(data.begin(), data.end());
      send.data = send.copy;
      network_.Complete(rank_, token);
    }
    const bool arrives = !network_.cut_[rank_] && !network_.lost_.contains({rank_, peer});
    if (arrives) network_.sends_.push_back(std::move(send));
  }

  void PostReceive(int peer, int tag, std::span<std::byte> data, Token token) override {
    std::lock_guard lock(network_.mutex_);
    CountPosted();
    network_.receives_[{peer, rank_, tag}].push_back({.data = data, .token = token});
  }

  void PostAllreduce(std::span<const float> contribution, std::span<float> sum, Token token) override {
    std::lock_guard lock(network_.mutex_);
    CountPosted();
    network_.allreduces_[rank_].push_back({.contribution = contribution, .sum = sum, .token = token});
  }

  absl::Status Poll(std::vector<Token>& completed) override {
    std::lock_guard lock(network_.mutex_);
    network_.Match();
    network_.MatchAllreduces();
    // Tells of completions in any order, and of some only in a later poll: a caller must not rely on either.
    std::vector<Token>& ready = network_.complete_[rank_];
    std::shuffle(ready.begin(), ready.end(), network_.random_);
    size_t kept = 0;
    for (const Token token : ready) {
      if (network_.Chance(60)) {
        completed.push_back(token);
        --network_.in_flight_[rank_];
        network_.sending_[rank_].erase({token.poster, token.operation});
      } else {
        ready[kept++] = token;
      }
    }
    ready.resize(kept);
    return absl::OkStatus();
  }

  void Wait(std::chrono::microseconds longest) override {
    if (!woken_.exchange(false)) std::this_thread::sleep_for(std::min(longest, kPause));
  }
  void Wake() override { woken_ = true; }

  std::optional<Received> TryReceive(int tag, std::span<std::byte> data) override {
    std::lock_guard lock(network_.mutex_);
    auto& sends = network_.sends_;
    const auto found = std::find_if(sends.begin(), sends.end(), [&](const Send& send) {
      return send.to == rank_ && send.tag == tag && !network_.cut_[rank_];
    });
    if (found == sends.end()) return std::nullopt;
    CHECK_LE(found->data.size(), data.size());
    std::copy(found->data.begin(), found->data.end(), data.begin());
    const Received received = {.peer = found->from, .bytes = static_cast<int64_t>(found->data.size())};
    if (!found->eager) network_.Complete(found->from, found->token);
    sends.erase(found);
    return received;
  }

 private:
  void CountPosted() { network_.in_flight_max_ = std::max(network_.in_flight_max_, ++network_.in_flight_[rank_]); }

  InMemoryNetwork& network_;
  const int rank_;
  std::atomic<bool> woken_ = false;
};

InMemoryNetwork::InMemoryNetwork(int world_size, uint64_t seed)
    : world_size_(world_size),
      random_(seed),
      allreduces_(world_size),
      complete_(world_size),
      cut_(world_size, false),
      moves_device_memory_(world_size, false),
      in_flight_(world_size, 0),
      sending_(world_size) {}

std::unique_ptr<MpiTransport> InMemoryNetwork::CreateTransport(int rank) {
  return std::make_unique<RankTransport>(this, rank);
}

void InMemoryNetwork::Disconnect(int rank) {
  std::lock_guard lock(mutex_);
  cut_[rank] = true;
  // Eager messages, which were copied, still arrive. Messages in the rank's own memory are lost.
  std::erase_if(sends_, [&](const Send& send) { return send.to == rank || (send.from == rank && !send.eager); });
  std::erase_if(receives_, [&](const auto& entry) { return std::get<1>(entry.first) == rank; });
}

void InMemoryNetwork::Lose(NetworkLink link) {
  std::lock_guard lock(mutex_);
  lost_.emplace(link.from, link.to);
}

void InMemoryNetwork::CorruptMessages(int tag, std::optional<NetworkLink> link) {
  std::lock_guard lock(mutex_);
  corrupt_tag_ = tag;
  corrupt_link_ = link;
}

bool InMemoryNetwork::IsCorrupt(const Send& send) const {
  if (send.tag != corrupt_tag_) return false;
  return !corrupt_link_.has_value() || (send.from == corrupt_link_->from && send.to == corrupt_link_->to);
}

int InMemoryNetwork::operations_in_flight_max() const {
  std::lock_guard lock(mutex_);
  return in_flight_max_;
}

int InMemoryNetwork::sends_in_flight_max() const {
  std::lock_guard lock(mutex_);
  return sends_in_flight_max_;
}

int64_t InMemoryNetwork::message_bytes_max() const {
  std::lock_guard lock(mutex_);
  return message_bytes_max_;
}

// Pairs the oldest send and the oldest receive of the same (from, to, tag); leaves a random part for later, but never
// lets a younger message of a triple overtake an older one.
void InMemoryNetwork::Match() {
  std::set<Triple> held_back;
  for (auto send = sends_.begin(); send != sends_.end();) {
    const Triple triple(send->from, send->to, send->tag);
    const auto waiting = receives_.find(triple);
    if (waiting == receives_.end() || held_back.contains(triple) || cut_[send->to] || Chance(30)) {
      held_back.insert(triple);
      ++send;
      continue;
    }
    const Receive receive = waiting->second.front();
    waiting->second.pop_front();
    if (waiting->second.empty()) receives_.erase(waiting);
    CHECK_LE(send->data.size(), receive.data.size());
    CHECK(receive.token.bytes != nullptr || send->data.size() == receive.data.size());
    if (receive.token.bytes != nullptr) *receive.token.bytes = std::ssize(send->data);
    std::copy(send->data.begin(), send->data.end(), receive.data.begin());
    if (IsCorrupt(*send)) receive.data.back() ^= std::byte{0x10};
    Complete(send->to, receive.token);
    if (!send->eager) Complete(send->from, send->token);
    send = sends_.erase(send);
  }
}

// As in MPI, the first allreduces of all ranks are one sum, then the second ones. A sum is over for all ranks at once.
void InMemoryNetwork::MatchAllreduces() {
  const auto is_empty = [](const std::deque<Allreduce>& queue) { return queue.empty(); };
  while (std::none_of(allreduces_.begin(), allreduces_.end(), is_empty)) {
    std::vector<float> sum(allreduces_[0].front().contribution.size(), 0.0f);
    for (const auto& queue : allreduces_) {
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += queue.front().contribution[i];
    }
    for (int rank = 0; rank < world_size_; ++rank) {
      const Allreduce& allreduce = allreduces_[rank].front();
      std::copy(sum.begin(), sum.end(), allreduce.sum.begin());
      Complete(rank, allreduce.token);
      allreduces_[rank].pop_front();
    }
  }
}

}  // namespace starring
