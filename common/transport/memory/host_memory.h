// How the processes of one world come to share memory, if all of them are on one host: each makes a *piece* of it and
// maps those of all others. Rank 0's piece also has the board (host_board.h).
//
// The pieces have no names (common/host/sealed_memory.h), so nothing remains of them when a process dies, however it
// dies. Any process of the same user on the host can write to them.
#ifndef STARRING_COMMON_TRANSPORT_MEMORY_HOST_MEMORY_H_
#define STARRING_COMMON_TRANSPORT_MEMORY_HOST_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/host/host_identity.h"
#include "common/host/machine_limits.h"
#include "common/host/sealed_memory.h"
#include "common/transport/collectives.h"
#include "common/transport/memory/host_board.h"
#include "common/transport/message_pump.h"

namespace starring {

// Thread safety: immutable, except for the bytes and the board.
class HostMemory {
 public:
  struct Options {
    // The length of each rank's piece, servers among them; the same on all ranks. 0: that rank needs no memory.
    std::function<int64_t(int rank)> bytes;
    int bucket_count = 0;  // of the board
    // To the pieces of other ranks. Rank 0's piece is mapped to be written in any case, because the board is.
    SealedMemory::Access access = SealedMemory::Access::kReadWrite;
    // Names the order of bytes in the pieces. Processes with different texts share no memory.
    std::string layout;
    std::string boot_id = BootId();  // of this rank's host; empty: not known
    std::function<absl::StatusOr<int64_t>()> available_memory = [] { return AvailableMemoryBytes(); };  // in bytes
  };
  // Either memory, or the reason why these processes cannot share it, as one of them says: the same on all.
  struct Outcome {
    std::unique_ptr<HostMemory> memory;
    std::string refusal;
  };
  // Collective, three messages to rank 0 and three from it. Every process shares memory with every other, or no process
  // does; none is allocated unless all are on one host, which has enough of it. An error is one of the messages.
  // REQUIRES: world_size >= 2.
  static absl::StatusOr<Outcome> Meet(MessagePump& pump, const Options& options, const CollectiveOptions& join);

  // Valid as long as this object, zero at first. Each begins on a page.
  std::span<const std::byte> piece(int rank) const;
  // REQUIRES: this process's own piece, or rank 0's, or Options::access allows it.
  std::span<std::byte> writable_piece(int rank);
  HostBoard* board() { return board_.get(); }

 private:
  HostMemory() = default;
  absl::Status Open(const std::vector<std::string>& pieces, int rank, const Options& options);

  int64_t board_bytes_ = 0;
  std::vector<std::unique_ptr<SealedMemory>> pieces_;  // by rank; the board is the first in rank 0's
  std::unique_ptr<HostBoard> board_;
};

}  // namespace starring

#endif  // STARRING_COMMON_TRANSPORT_MEMORY_HOST_MEMORY_H_
