// Whether the ring's messages go straight from GPU to GPU, or by way of host memory.
//
// A CUDA-aware MPI takes pointers to GPU memory; any other crashes on them, or sends what lies elsewhere. So the
// library is asked first, and what it says is not believed until it has moved a pattern between real buffers, in both
// sizes that the ring sends, which a kernel on the other side has read. One rank that cannot is enough: then none does.
#ifndef STARRING_WORKER_EXCHANGE_PEER_DEVICE_PATH_H_
#define STARRING_WORKER_EXCHANGE_PEER_DEVICE_PATH_H_

#include "absl/status/statusor.h"
#include "worker/exchange/peer/collectives.h"
#include "worker/exchange/peer/cuda_slice_owner.h"
#include "worker/exchange/peer/message_pump.h"

namespace starring {

enum class DevicePath { kByHost, kStraight };

// Collective over all ranks, the same answer everywhere. `owner`: where messages would lie; null where this rank has no
// GPU, or no memory on it. An error only where a peer is missing, or the library fails: then nothing works any more.
absl::StatusOr<DevicePath> ChooseDevicePath(MessagePump& pump, CudaSliceOwner* owner, const CollectiveOptions& options);

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_DEVICE_PATH_H_
