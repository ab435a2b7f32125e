// How the ranks of a job come to share memory (memory_machine.h): each rank makes one piece of it and maps those of all
// others. Rank 0's piece also has the parameters and the board.
//
// The pieces have no names (common/wire/shared_memory.h), so nothing remains of them when a process dies, however it
// dies. Any process of the same user on the host can write to them.
#ifndef STARRING_WORKER_EXCHANGE_PEER_HOST_MEMORY_H_
#define STARRING_WORKER_EXCHANGE_PEER_HOST_MEMORY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/host/host_identity.h"
#include "common/host/machine_limits.h"
#include "common/transport/collectives.h"
#include "common/transport/memory/host_board.h"
#include "common/transport/message_pump.h"
#include "common/wire/shared_memory.h"
#include "worker/exchange/peer/memory_machine.h"

namespace starring {

// Thread safety: immutable, except for what the arrays and the board say.
class HostMemory {
 public:
  struct Options {
    int64_t element_count = 0;  // of the parameter vector
    int bucket_count = 0;
    int micro_batches = 0;           // JobSpec::micro_batches: a rank has an array for each node of its share
    std::string boot_id = BootId();  // of this rank's host
    std::function<absl::StatusOr<int64_t>()> available_memory = [] { return AvailableMemoryBytes(); };  // in bytes
  };
  // Either memory, or the reason why these ranks cannot share it, as one of them says: the same on all ranks.
  struct Outcome {
    std::unique_ptr<HostMemory> memory;
    std::string refusal;
  };
  // Collective, three messages to rank 0 and three from it. Every rank shares memory with every other, or no rank does;
  // none is allocated unless all ranks are on one host, which has enough of it. An error is one of the messages.
  // REQUIRES: world_size >= 2, and equal counts on all ranks.
  static absl::StatusOr<Outcome> Meet(MessagePump& pump, const Options& options, const CollectiveOptions& join);

  // Valid as long as this object.
  const HostArrays& arrays() const { return arrays_; }
  HostBoard* board() { return board_.get(); }

 private:
  HostMemory() = default;
  absl::Status Open(const std::vector<std::string>& pieces, int rank, const Options& options);
  void Divide(int rank, const Options& options);

  std::vector<std::unique_ptr<SharedMemory>> pieces_;  // by rank
  HostArrays arrays_;
  std::unique_ptr<HostBoard> board_;
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_HOST_MEMORY_H_
