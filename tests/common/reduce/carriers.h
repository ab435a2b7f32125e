// All carriers of a ring's and a star's messages that fit into one process, for tests that drive every process of a
// world on one thread.
#ifndef STARRING_TESTS_COMMON_REDUCE_CARRIERS_H_
#define STARRING_TESTS_COMMON_REDUCE_CARRIERS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <ostream>
#include <span>
#include <utility>
#include <vector>

#include "common/transport/memory/host_board.h"
#include "common/transport/memory/host_transport.h"
#include "common/transport/transport.h"
#include "tests/common/transport/in_memory_transport.h"
#include "tests/common/transport/tcp/tcp_loopback.h"

namespace starring {

// kAnyOrder completes operations in any order that the contract allows, as MPI may. kBoard is a host board, with
// kAnyOrder for longer messages.
enum class Carrier { kAnyOrder, kTcp, kBoard };
inline std::ostream& operator<<(std::ostream& out, Carrier carrier) {
  const char* const names[] = {"AnyOrder", "Tcp", "Board"};
  return out << names[static_cast<int>(carrier)];
}

// The transports of a world. Outlives them.
class World {
 public:
  World(Carrier carrier, int world_size, uint64_t seed) : network_(world_size, seed) {
    if (carrier == Carrier::kTcp) {
      for (auto& transport : ConnectedRanks(world_size, {.unexpected_bytes_max = int64_t{1} << 30})) {
        transports_.push_back(std::move(transport));
      }
      return;
    }
    const auto options = [=](int rank) { return HostBoard::Options{.rank = rank, .world_size = world_size}; };
    board_.resize((HostBoard::Bytes(options(0)) + sizeof(Line) - 1) / sizeof(Line));
    for (int rank = 0; rank < world_size; ++rank) {
      std::unique_ptr<Transport> network = network_.CreateTransport(rank);
      if (carrier == Carrier::kBoard) {
        auto on_board = std::make_unique<HostTransport>(std::move(network));
        on_board->Attach(&boards_.emplace_back(std::as_writable_bytes(std::span(board_)), options(rank)));
        network = std::move(on_board);
      }
      transports_.push_back(std::move(network));
    }
  }

  // Called once for each rank.
  std::unique_ptr<Transport> Take(int rank) { return std::move(transports_[rank]); }
  InMemoryNetwork& network() { return network_; }

 private:
  struct alignas(64) Line {
    std::byte bytes[64] = {};
  };
  InMemoryNetwork network_;
  std::vector<Line> board_;
  std::deque<HostBoard> boards_;  // by rank
  std::vector<std::unique_ptr<Transport>> transports_;
};

}  // namespace starring

#endif  // STARRING_TESTS_COMMON_REDUCE_CARRIERS_H_
