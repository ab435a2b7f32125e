// How the processes of a group come to share memory, if they can: each *owner* makes its own, and the ranks map that of
// all owners.
//
// The memory has no name (common/host/sealed_memory.h), so nothing remains of it when a process dies, however it dies.
// Any process of the same user on the host can write to it.
#ifndef STARRING_WORKER_PYTHON_GROUP_MEMORY_H_
#define STARRING_WORKER_PYTHON_GROUP_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/memory.h"
#include "common/host/host_identity.h"
#include "common/host/sealed_memory.h"
#include "common/transport/collectives.h"
#include "common/transport/message_pump.h"

namespace starring {

// Thread safety: immutable, but for the bytes.
class GroupMemory {
 public:
  struct Options {
    int first_owner = 0;             // this rank of the world, and all after it, are owners
    int64_t bytes = 0;               // of each owner's memory
    std::string host_id = BootId();  // of this process's host
  };
  // Collective over ranks and servers, two messages to rank 0 and two from it. Either all ranks share the memory of all
  // owners, or none does. An error is one of the messages. REQUIRES: world_size >= 2; equal numbers on all processes.
  static absl::StatusOr<std::unique_ptr<GroupMemory>> Meet(MessagePump& pump, const Options& options,
                                                           const CollectiveOptions& join);

  // Valid as long as this object, zero at first, and begins at a cache line. Empty at a rank that is no owner.
  std::span<std::byte> own() { return own_; }
  bool is_shared() const { return is_shared_; }
  // At a rank, if it is shared: that of every owner, in order.
  const std::vector<std::span<std::byte>>& of_owners() const { return of_owners_; }

 private:
  GroupMemory() = default;
  void Create(int64_t bytes);
  std::string OpenAll(const std::vector<std::string>& places, const Options& options);

  std::unique_ptr<SealedMemory> made_;  // null: the system has none
  AlignedFloats private_;               // then
  std::vector<std::unique_ptr<SealedMemory>> opened_;
  std::span<std::byte> own_;
  std::vector<std::span<std::byte>> of_owners_;
  bool is_shared_ = false;
};

}  // namespace starring

#endif  // STARRING_WORKER_PYTHON_GROUP_MEMORY_H_
