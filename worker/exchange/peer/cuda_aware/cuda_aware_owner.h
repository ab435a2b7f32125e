// Whether the messages of a ring or a co-located star go from GPU to GPU, or by way of host memory.
//
// A CUDA-aware MPI takes pointers to GPU memory; any other MPI crashes on them, or sends what happens to be at the same
// address of the host. So the library is asked first, and its claim is tested: it has to move a pattern between real
// buffers, in three sizes, and a kernel on the receiving GPU has to read it, between all ranks that will exchange
// gradients. The largest size is that of the longest message, up to 16 MiB: libraries change protocol by size. If one
// rank cannot, no rank does. The second round of messages is in memory that the first one has freed, while kernels run:
// a library that keeps the registration of freed memory is found out.
//
// This header is all that the rest of the exchange knows of CUDA-aware MPI.
#ifndef STARRING_WORKER_EXCHANGE_PEER_CUDA_AWARE_CUDA_AWARE_OWNER_H_
#define STARRING_WORKER_EXCHANGE_PEER_CUDA_AWARE_CUDA_AWARE_OWNER_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "common/job/owned_slices.h"
#include "common/transport/collectives.h"
#include "common/transport/message_pump.h"
#include "common/transport/mpi/mpi_transport.h"
#include "kernels/cuda/cuda_device.h"
#include "worker/exchange/slice_owner.h"

namespace starring {

// Which ranks exchange gradients: a ring's, or a star's. The library may move the memory of some GPUs and not of
// others.
enum class CudaAwarePairs { kNeighbours, kAllRanks };

struct CudaAwareOptions {
  // The transport that the pump drives; null: it is another one, which moves host memory only.
  const MpiTransport* mpi = nullptr;
  CudaAwarePairs pairs = CudaAwarePairs::kAllRanks;
  // The test decides though the library claims nothing: below it, UCX may move the memory of GPUs all the same. The
  // process dies if that is wrong.
  bool without_claim = false;
  int64_t reserved_elements = 0;  // that the machine will allocate of the owner
  int64_t message_elements = 0;   // of the machine's longest message; the same on all ranks
};

// Sets `owner` to the owner, in GPU memory, of this rank's slices; null on every rank alike if one of them has no GPU,
// too little memory on it, or a library that cannot move it. Collective over all ranks, those without a GPU too. An
// error only if a peer is missing or the library fails: then nothing works any more, and `owner` may have memory that a
// message still reaches.
//
// `device` outlives the owner; null: this rank has no GPU.
absl::Status CreateCudaAwareOwner(MessagePump& pump, CudaDevice* device, const OwnedSlices::Options& options,
                                  const CudaAwareOptions& aware, const CollectiveOptions& collective,
                                  std::unique_ptr<SliceOwner>& owner);

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_CUDA_AWARE_CUDA_AWARE_OWNER_H_
