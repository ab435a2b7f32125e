// MPI in this process, from MPI_Init to MPI_Finalize, and the transport over it. There is at most one MpiRuntime in the
// life of a process; it is started only when the job uses ring or mpi.
//
// Threads: MPI_THREAD_SERIALIZED, so one thread at a time may be inside MPI. An exchange ensures this as long as it
// exists. Create exchanges and destroy the runtime on one thread, and destroy all exchanges first.
#ifndef STARRING_COMMON_TRANSPORT_MPI_MPI_RUNTIME_H_
#define STARRING_COMMON_TRANSPORT_MPI_MPI_RUNTIME_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/host/launcher_environment.h"
#include "common/transport/mpi/mpi_library.h"
#include "common/transport/mpi/mpi_transport.h"

namespace starring {

struct MpiStartOptions {
  absl::Duration join_deadline = absl::Seconds(60);
  // After so long in MPI_Init this process prints a line, and another one when it goes on; 0: never.
  absl::Duration stall_report = absl::ZeroDuration();
  std::string note = "";         // the end of the message at the deadline
  std::string library = "auto";  // as LoadMpiLibrary
};

class MpiRuntime {
 public:
  // Loads the library. Its errors are those of LoadMpiLibrary.
  // InvalidArgument, with the way out, if MPI sees another number of ranks than the launcher started: srun without PMI
  // starts jobs of one rank without a warning. A missing process keeps all others inside MPI_Init, from where no error
  // can be returned: after the deadline this process prints a message and ends with exit code 3.
  static absl::StatusOr<std::unique_ptr<MpiRuntime>> Start(const LauncherEnvironment& launcher,
                                                           const MpiStartOptions& options = {});

  // Calls MPI_Finalize, in which all ranks wait for each other. Only after an orderly end; otherwise use
  // ExitWithoutFinalize.
  ~MpiRuntime();
  MpiRuntime(const MpiRuntime&) = delete;
  MpiRuntime& operator=(const MpiRuntime&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  const MpiLibrary& library() const { return library_; }

  // Ends the process at once, without MPI_Finalize, which would wait for the peers. Flushes stdio; runs no destructors.
  // mpirun then ends the other ranks and returns `exit_code`, unless it is 0.
  [[noreturn]] void ExitWithoutFinalize(int exit_code);

 private:
  explicit MpiRuntime(MpiLibrary library) : library_(std::move(library)) {}

  const MpiLibrary library_;
  int (*finalize_)() = nullptr;  // the library's, of which the destructor asks no variant, since that could throw
  int rank_ = 0;
  int world_size_ = 1;
};

// Making a communicator is a collective operation, which has no deadline: it may hang where ranks do not reach each
// other. kWorld, for a check, sends nothing before the first message; then no other transport is used in the process.
enum class MpiCommunicator { kOwn, kWorld };

// A transport over MPI_Isend, MPI_Irecv and MPI_Iallreduce, completed by MPI_Testsome.
//
// Collective over all ranks of `runtime`, which outlives the transport. If operations are pending when the transport is
// destroyed, its communicator is not freed; then the process must leave by MpiRuntime::ExitWithoutFinalize.
//
// MPI cannot sleep until a message arrives, so Wait pauses between two polls: for as long as the pauses since a poll
// has found something, between 20 and 320 us, and after a tenth of a second up to 2 ms. A wait had better poll that
// long.
//
// Thread safety: as transport.h says; Wait and Wake do not enter MPI (MPI_THREAD_SERIALIZED).
[[nodiscard]] std::unique_ptr<MpiTransport> CreateMpiTransport(const MpiRuntime& runtime,
                                                               MpiCommunicator communicator = MpiCommunicator::kOwn);

}  // namespace starring

#endif  // STARRING_COMMON_TRANSPORT_MPI_MPI_RUNTIME_H_
