// The ring: our own reduce-scatter and allgather over MPI's point-to-point messages. See ring_machine.h for the
// algorithm, peer_exchange.h for the threads.
#ifndef STARRING_WORKER_EXCHANGE_PEER_RING_EXCHANGE_H_
#define STARRING_WORKER_EXCHANGE_PEER_RING_EXCHANGE_H_

#include <memory>

#include "common/trace.h"
#include "kernels/cuda/cuda_device.h"
#include "worker/exchange/gradient_exchange.h"
#include "worker/exchange/peer/mpi_runtime.h"
#include "worker/exchange/stall_report.h"

namespace starring {

// Collective over all ranks of `runtime`, which outlives the exchange, as `trace` does (null: there is none). `device`:
// a GPU from whose memory MPI may send, if it can; null: messages lie in host memory. See PeerExchange.
std::unique_ptr<GradientExchange> CreateRingExchange(MpiRuntime* runtime, Trace* trace = nullptr,
                                                     CudaDevice* device = nullptr, StallOptions stall = {});

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_RING_EXCHANGE_H_
