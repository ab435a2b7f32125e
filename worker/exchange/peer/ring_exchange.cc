#include "worker/exchange/peer/ring_exchange.h"

#include <utility>

#include "worker/exchange/peer/mpi_transport.h"
#include "worker/exchange/peer/peer_exchange.h"

namespace starring {

std::unique_ptr<GradientExchange> CreateRingExchange(MpiRuntime* runtime, Trace* trace, CudaDevice* device,
                                                     StallOptions stall) {
  return std::make_unique<PeerExchange>(CreateMpiTransport(*runtime), PeerExchange::Algorithm::kRing, trace, device,
                                        std::move(stall));
}

}  // namespace starring
