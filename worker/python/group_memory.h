// How the processes of a star come to share the memory in which owners add (piece_memory.h), if they can: each owner
// makes its own, and the ranks map those of all owners.
//
// The memory has no name (common/host/sealed_memory.h), so nothing remains of it when a process dies, however it dies.
// Any process of the same user on the host can write to it.
#ifndef STARRING_WORKER_PYTHON_GROUP_MEMORY_H_
#define STARRING_WORKER_PYTHON_GROUP_MEMORY_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/host/host_identity.h"
#include "common/host/sealed_memory.h"
#include "common/memory.h"
#include "common/transport/collectives.h"
#include "common/transport/message_pump.h"
#include "worker/python/piece_memory.h"

namespace starring {

// Thread safety: immutable, but for the bytes.
class GroupMemory {
 public:
  struct Options {
    int server_count = 0;            // 0: the ranks are the owners
    std::string host_id = BootId();  // of this process's host
  };
  // Collective over ranks and servers, two messages to rank 0 and two from it. Either all ranks share the memory of all
  // owners, or none does. An error is one of the messages. REQUIRES: world_size >= 2.
  static absl::StatusOr<std::unique_ptr<GroupMemory>> Meet(MessagePump& pump, const Options& options,
                                                           const CollectiveOptions& join);

  // Valid as long as this object.
  // An owner's; a rank that owns nothing has none.
  std::optional<PieceMemory> own() const { return own_; }
  bool is_shared() const { return is_shared_; }
  // At a rank, if it is shared: that of every owner, in order.
  const std::vector<PieceMemory>& shared() const { return shared_; }

 private:
  GroupMemory() = default;
  void Create(int worker_count);
  std::string OpenAll(const std::vector<std::string>& places, int first_owner, int worker_count);

  std::unique_ptr<SealedMemory> made_;  // null: the system has none
  AlignedFloats private_;               // then
  std::vector<std::unique_ptr<SealedMemory>> opened_;
  std::optional<PieceMemory> own_;
  std::vector<PieceMemory> shared_;
  bool is_shared_ = false;
};

}  // namespace starring

#endif  // STARRING_WORKER_PYTHON_GROUP_MEMORY_H_
