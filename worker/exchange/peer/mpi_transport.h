// A transport over MPI: MPI_Isend, MPI_Irecv and MPI_Iallreduce on a communicator of its own, completed by
// MPI_Testsome.
//
// Thread safety: none; one thread at a time (MPI_THREAD_SERIALIZED).
#ifndef STARRING_WORKER_EXCHANGE_PEER_MPI_TRANSPORT_H_
#define STARRING_WORKER_EXCHANGE_PEER_MPI_TRANSPORT_H_

#include <memory>

#include "worker/exchange/peer/mpi_runtime.h"
#include "worker/exchange/peer/transport.h"

namespace starring {

// Collective over all ranks of `runtime`, which outlives the transport. If operations are pending when the transport is
// destroyed, its communicator is not freed; then the process must leave by MpiRuntime::ExitWithoutFinalize.
std::unique_ptr<Transport> CreateMpiTransport(const MpiRuntime& runtime);

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_MPI_TRANSPORT_H_
