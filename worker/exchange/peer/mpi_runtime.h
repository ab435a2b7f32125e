// MPI in this process, from MPI_Init to MPI_Finalize, and the transport over it. There is at most one MpiRuntime in the
// life of a process; it is started only when the job uses ring or mpi.
//
// Threads: MPI_THREAD_SERIALIZED. One thread at a time may be inside MPI; the exchange sees to it while it lives, so
// create exchanges and destroy this object in one thread, without an exchange alive at the end.
#ifndef STARRING_WORKER_EXCHANGE_PEER_MPI_RUNTIME_H_
#define STARRING_WORKER_EXCHANGE_PEER_MPI_RUNTIME_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/exchange/peer/transport.h"
#include "worker/launcher_environment.h"

namespace starring {

class MpiRuntime {
 public:
  // InvalidArgument when MPI sees another number of ranks than the launcher started (srun without PMI starts singletons
  // silently), with the way out. A process that is missing keeps everybody else inside MPI_Init, where nothing can be
  // returned: after `join_deadline` this process ends with a message, which `note` is added to, and exit code 3.
  static absl::StatusOr<std::unique_ptr<MpiRuntime>> Start(const LauncherEnvironment& launcher,
                                                           absl::Duration join_deadline = absl::Seconds(60),
                                                           const std::string& note = "");

  // MPI_Finalize: all ranks leave together. Only after an orderly end; else ExitWithoutFinalize.
  ~MpiRuntime();
  MpiRuntime(const MpiRuntime&) = delete;
  MpiRuntime& operator=(const MpiRuntime&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }

  // Ends the process at once, leaving the peers alone: MPI_Finalize would wait for them. Flushes stdio; runs no
  // destructors. mpirun then ends the other ranks and returns `exit_code`, unless it is 0.
  [[noreturn]] void ExitWithoutFinalize(int exit_code);

 private:
  MpiRuntime() = default;

  int rank_ = 0;
  int world_size_ = 1;
};

// A transport over MPI_Isend, MPI_Irecv and MPI_Iallreduce on a communicator of its own, completed by MPI_Testsome.
//
// Collective over all ranks of `runtime`, which outlives the transport. If operations are pending when the transport is
// destroyed, its communicator is not freed; then the process must leave by MpiRuntime::ExitWithoutFinalize.
//
// Thread safety: none; one thread at a time (MPI_THREAD_SERIALIZED).
[[nodiscard]] std::unique_ptr<Transport> CreateMpiTransport(const MpiRuntime& runtime);

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_MPI_RUNTIME_H_
