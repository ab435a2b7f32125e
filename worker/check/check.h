// worker --check: before any training, every worker dials every process that it will talk to, and rank 0 prints one
// table and one sentence: ready, or what to mend.
//
// A star's workers dial the servers, by TCP and by a call of the real protocol, and meet at the servers. A ring's ranks
// dial each other by TCP, at the interfaces that Open MPI would use, and then by MPI; they meet through mpirun, or
// where srun has started them, through MPI itself and then rank 0.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_CHECK_CHECK_H_
#define STARRING_WORKER_CHECK_CHECK_H_

#include <functional>
#include <string>

#include "proto/starring/v1/check.pb.h"
#include "worker/exchange/peer/mpi_runtime.h"
#include "worker/launcher_environment.h"
#include "worker/worker_options.h"

namespace starring {

struct CheckParts {
  const WorkerOptions* options = nullptr;
  const LauncherEnvironment* launcher = nullptr;
  MpiRuntime* mpi = nullptr;                      // null unless ring or mpi
  std::string gpu;                                // what a person calls this worker's GPUs; empty: none
  std::function<void(const std::string&)> print;  // the table, or a line; ends with a line's end
};

struct CheckOutcome {
  int exit_code = 0;  // of common/flags/command_line.h
  // MPI does not answer any more: leave by MpiRuntime::ExitWithoutFinalize.
  bool mpi_is_stuck = false;
};

CheckOutcome RunCheck(const CheckParts& parts);

// What this process knows of its own place in the network, for when it learns nothing of the others': host, interfaces
// and what Open MPI was told of them.
std::string OwnPlace(const LauncherEnvironment& launcher);

}  // namespace starring

#endif  // STARRING_WORKER_CHECK_CHECK_H_
