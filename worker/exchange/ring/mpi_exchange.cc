#include "worker/exchange/ring/mpi_exchange.h"

#include "worker/exchange/ring/mpi_transport.h"
#include "worker/exchange/ring/peer_exchange.h"

namespace starring {

std::unique_ptr<GradientExchange> CreateMpiExchange(MpiRuntime* runtime, Trace* trace) {
  return std::make_unique<PeerExchange>(CreateMpiTransport(*runtime), PeerExchange::Algorithm::kAllreduce, trace);
}

}  // namespace starring
