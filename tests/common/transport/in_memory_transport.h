// A network of ranks inside one process, for the ring's tests. Messages are late, and complete in any order that the
// contract of transport.h allows, at random.
//
// Every Poll completes a random part of the operations that can complete. At random a send is either *eager*, which
// means that it is copied at once and completes before the receiver has looked, or it completes only when its receive
// has taken the bytes.
#ifndef STARRING_TESTS_COMMON_TRANSPORT_IN_MEMORY_TRANSPORT_H_
#define STARRING_TESTS_COMMON_TRANSPORT_IN_MEMORY_TRANSPORT_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "common/transport/mpi/mpi_transport.h"

namespace starring {

// One direction between two ranks.
struct NetworkLink {
  int from = 0;
  int to = 0;
};

// Thread safety: transports of different ranks may be used by different threads.
class InMemoryNetwork {
 public:
  InMemoryNetwork(int world_size, uint64_t seed);

  // REQUIRES: the network outlives the transport; one transport per rank.
  std::unique_ptr<MpiTransport> CreateTransport(int rank);

  // From now on nothing arrives at or leaves `rank`. Messages that have left before arrive: a reason to give up must
  // arrive.
  void Disconnect(int rank);

  // From now on nothing that is sent arrives by this link.
  void Lose(NetworkLink link);

  // Whether the transport of each rank claims to move device memory. To be called before a transport is used.
  void set_moves_device_memory(std::vector<bool> by_rank) { moves_device_memory_ = std::move(by_rank); }

  // Whether the transports claim that links may be lost one by one. To be called before a transport is used.
  void set_loses_single_links(bool yes) { loses_single_links_ = yes; }

  // From now on every message with `tag` arrives with one wrong bit; with a link, only messages of that link.
  void CorruptMessages(int tag, std::optional<NetworkLink> link = std::nullopt);

  // The most operations that any rank had posted at a time.
  int operations_in_flight_max() const;
  // The most sends among them.
  int sends_in_flight_max() const;
  // The longest message that any rank has sent.
  int64_t message_bytes_max() const;

 private:
  class RankTransport;

  using Triple = std::tuple<int, int, int>;  // from, to, tag: messages with the same one match in the order posted
  struct Send {
    int from = 0;
    int to = 0;
    int tag = 0;
    std::vector<std::byte> copy;      // if eager: the data
    std::span<const std::byte> data;  // the sender's, or `copy`
    bool eager = false;
    Transport::Token token;
  };
  struct Receive {
    std::span<std::byte> data;
    Transport::Token token;
  };
  struct Allreduce {
    std::span<const float> contribution;
    std::span<float> sum;
    Transport::Token token;
  };

  bool Chance(int percent) { return static_cast<int>(random_() % 100) < percent; }
  void Match();
  void MatchAllreduces();
  void Complete(int rank, Transport::Token token) { complete_[rank].push_back(token); }
  bool IsCorrupt(const Send& send) const;

  const int world_size_;
  mutable std::mutex mutex_;
  std::mt19937_64 random_;
  std::deque<Send> sends_;                               // in the order posted
  std::map<Triple, std::deque<Receive>> receives_;       // likewise; no deque is empty
  std::vector<std::deque<Allreduce>> allreduces_;        // by rank
  std::vector<std::vector<Transport::Token>> complete_;  // by rank: not polled yet
  std::vector<bool> cut_;
  std::set<std::pair<int, int>> lost_;  // from, to
  std::vector<bool> moves_device_memory_;
  bool loses_single_links_ = false;
  std::optional<int> corrupt_tag_;
  std::optional<NetworkLink> corrupt_link_;
  std::vector<int> in_flight_;
  int in_flight_max_ = 0;
  std::vector<std::set<std::pair<Transport::Poster*, uint64_t>>> sending_;  // by rank: sends that are not polled yet
  int sends_in_flight_max_ = 0;
  int64_t message_bytes_max_ = 0;
};

}  // namespace starring

#endif  // STARRING_TESTS_COMMON_TRANSPORT_IN_MEMORY_TRANSPORT_H_
