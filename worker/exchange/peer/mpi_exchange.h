// The control: the same exchange with MPI_Allreduce, the library's own choice of algorithm. See allreduce_machine.h.
#ifndef STARRING_WORKER_EXCHANGE_PEER_MPI_EXCHANGE_H_
#define STARRING_WORKER_EXCHANGE_PEER_MPI_EXCHANGE_H_

#include <memory>

#include "common/trace.h"
#include "worker/exchange/gradient_exchange.h"
#include "worker/exchange/peer/mpi_runtime.h"
#include "worker/exchange/stall_report.h"

namespace starring {

// Collective over all ranks of `runtime`, which outlives the exchange, as `trace` does (null: there is none).
// `stall`: see PeerExchange.
std::unique_ptr<GradientExchange> CreateMpiExchange(MpiRuntime* runtime, Trace* trace = nullptr,
                                                    StallOptions stall = {});

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_MPI_EXCHANGE_H_
