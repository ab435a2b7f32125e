#include "worker/exchange/peer/mpi_exchange.h"

#include <utility>

#include "worker/exchange/peer/mpi_transport.h"
#include "worker/exchange/peer/peer_exchange.h"

namespace starring {

std::unique_ptr<GradientExchange> CreateMpiExchange(MpiRuntime* runtime, Trace* trace, StallOptions stall) {
  return std::make_unique<PeerExchange>(CreateMpiTransport(*runtime), PeerExchange::Algorithm::kAllreduce, trace,
                                        nullptr, std::move(stall));
}

}  // namespace starring
