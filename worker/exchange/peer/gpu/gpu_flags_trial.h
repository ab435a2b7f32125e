// A trial of the flags before a training relies on them: the ranks update a vector together in many rounds that no host
// paces, each rank its part, with the flags of a bucket that only the trial has.
#ifndef STARRING_WORKER_EXCHANGE_PEER_GPU_GPU_FLAGS_TRIAL_H_
#define STARRING_WORKER_EXCHANGE_PEER_GPU_GPU_FLAGS_TRIAL_H_

#include "absl/status/status.h"
#include "common/transport/collectives.h"
#include "common/transport/message_pump.h"
#include "kernels/cuda/cuda_device.h"
#include "worker/exchange/peer/gpu/gpu_flags.h"
#include "worker/exchange/peer/gpu/gpu_memory.h"

namespace starring {

// Collective; returns an error of the messages. *why: this rank's reason why the flags do not serve, or OK; the ranks
// may differ. Gradients and parameters end with zeros, as they began. A GPU that waits in vain is released after some
// seconds; then the flags are void.
absl::Status TryGpuFlags(MessagePump& pump, CudaDevice* device, const GpuMemory& memory, GpuFlags* flags,
                         const CollectiveOptions& join, absl::Status* why);

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_GPU_GPU_FLAGS_TRIAL_H_
