// How the ranks of one host come to map each other's GPU memory: each has a *piece*, with its gradients and its
// parameters, exports it, and maps those of all others.
//
// CUDA's rule: a rank must not free its piece while another one maps it (cudaIpcCloseMemHandle). So pieces end in two
// steps with a barrier in between: Disband, then the destructor. After an error there is no barrier, and the process's
// end frees the piece.
#ifndef STARRING_WORKER_EXCHANGE_PEER_GPU_GPU_MEMORY_H_
#define STARRING_WORKER_EXCHANGE_PEER_GPU_GPU_MEMORY_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/transport/collectives.h"
#include "common/transport/message_pump.h"
#include "kernels/cuda/cuda_device.h"

namespace starring {

// Replaces *error, this rank's, by the first one in the order of ranks, with its code; OK if no rank has one.
// Collective. Returns an error of the messages.
absl::Status AgreeOnFirstError(MessagePump& pump, const CollectiveOptions& join, absl::Status* error);

// Thread safety: immutable, except for the floats; Meet, Disband and the destructor on the device's thread.
class GpuMemory {
 public:
  // Either memory, or the reason why these ranks cannot share it, as one of them says: the same on all. The reason is
  // ResourceExhausted if the memory of a GPU is too small; then the GPUs are as before.
  struct Outcome {
    std::unique_ptr<GpuMemory> memory;
    absl::Status refusal;
  };
  // Collective over all ranks, those without a GPU too. Every rank maps every piece, or no rank does. A test with the
  // real kernel, all ranks at once, comes before they rely on it. An error is one of the messages. After a refusal by
  // the test the GPU may be of no more use: a fault ends its context.
  // `device` outlives the memory; null: this rank has no GPU. REQUIRES: world_size >= 2, and all are on one host.
  static absl::StatusOr<Outcome> Meet(MessagePump& pump, CudaDevice* device, int64_t element_count,
                                      const CollectiveOptions& join);
  ~GpuMemory();

  int rank_count() const { return static_cast<int>(floats_.size()); }
  // Device memory of element_count floats each, zero at first.
  std::span<float> gradients(int rank) const { return {floats_[rank], static_cast<size_t>(element_count_)}; }
  std::span<float> parameters(int rank) const { return {floats_[rank] + stride_, static_cast<size_t>(element_count_)}; }

  // The memory of its GPU that a rank takes.
  static int64_t Bytes(int64_t element_count);

  // Collective: no rank uses the pieces any more. Unmaps those of other ranks, and lets the destructor free this
  // rank's.
  absl::Status Disband(MessagePump& pump, const CollectiveOptions& end);

 private:
  GpuMemory(CudaDevice* device, int64_t element_count);
  absl::StatusOr<std::string> Allocate();  // returns the bytes that name the piece
  absl::Status Open(const std::vector<std::string>& pieces, int rank);

  CudaDevice& device_;
  const int64_t element_count_;
  const int64_t stride_;  // of the parameters behind the gradients, so that both are aligned alike
  std::unique_ptr<DeviceBuffer> own_;
  std::vector<std::unique_ptr<DeviceBuffer>> others_;
  std::vector<float*> floats_;  // by rank: its piece
  bool may_free_ = false;
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_GPU_GPU_MEMORY_H_
