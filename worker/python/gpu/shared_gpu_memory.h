// How the ranks of one host come to map each other's GPU memory, by CUDA's IPC: each makes a *piece* of it, and maps
// those of all others.
#ifndef STARRING_WORKER_PYTHON_GPU_SHARED_GPU_MEMORY_H_
#define STARRING_WORKER_PYTHON_GPU_SHARED_GPU_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/transport/collectives.h"
#include "common/transport/message_pump.h"
#include "worker/python/gpu/gpu_context.h"

namespace starring {

// Replaces `reason` on all ranks by the first rank's that is not empty, by rank; empty: all are. Collective. An error
// is one of the messages.
absl::Status AgreeOnReason(MessagePump& pump, const CollectiveOptions& join, std::string* reason);

// Thread safety: immutable, except for the bytes; Meet and Disband on the thread of the pump.
class SharedGpuMemory {
 public:
  // Either memory, or the reason why these ranks cannot share it, as one of them says: the same on all.
  struct Outcome {
    std::unique_ptr<SharedGpuMemory> memory;
    std::string refusal;
  };
  // Collective. Every rank maps every piece, or no rank does. A test with the real kernel, all ranks at once, comes
  // before they rely on it. An error is one of the messages. `context` outlives the memory, and is the thread's.
  // REQUIRES: 2 <= world_size <= kGpuRanksMax, there are no servers, and all are on one host.
  static absl::StatusOr<Outcome> Meet(MessagePump& pump, const GpuContext* context, int64_t bytes,
                                      const CollectiveOptions& join);
  // Frees nothing that another rank may still map: without Disband the piece stays until the process ends.
  ~SharedGpuMemory();

  int64_t bytes() const { return bytes_; }  // of each piece
  std::byte* piece(int rank) const { return pieces_[rank]; }

  // Collective: no rank uses the pieces any more. Unmaps those of the others, and waits until `deadline` for them to
  // do the same. Then the destructor frees this rank's. An error: a rank has not.
  absl::Status Disband(MessagePump& pump, absl::Duration deadline);

 private:
  SharedGpuMemory(const GpuContext* context, int64_t bytes);
  absl::StatusOr<std::string> Allocate();  // returns the bytes that name the piece
  absl::Status Open(const std::vector<std::string>& names, int rank);
  void CloseOthers();

  const GpuContext& context_;
  const int64_t bytes_;
  std::byte* own_ = nullptr;
  std::vector<std::byte*> others_;
  std::vector<std::byte*> pieces_;  // by rank
  bool may_free_ = false;
};

}  // namespace starring

#endif  // STARRING_WORKER_PYTHON_GPU_SHARED_GPU_MEMORY_H_
