// worker --check: without any training, every worker dials every process that it would talk to, and rank 0 prints one
// table and one sentence: ready, or what to mend.
//
// Processes that exchange over TCP, servers among them, meet as in the job, at --rendezvous, and test the connections
// of the job itself. Ranks that exchange over MPI dial each other by TCP, at the interfaces that Open MPI would use,
// and then test MPI's messages likewise; they meet through mpirun, or where srun has started them, through MPI itself.
// Workers that dial servers do so by TCP and by a call of the real protocol, and meet at these servers.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_CHECK_CHECK_H_
#define STARRING_WORKER_CHECK_CHECK_H_

#include <functional>
#include <string>

#include "common/host/launcher_environment.h"
#include "common/transport/mpi/mpi_runtime.h"
#include "common/transport/tcp/tcp_rendezvous.h"
#include "proto/starring/v1/check.pb.h"
#include "worker/options/worker_options.h"

namespace starring {

struct CheckParts {
  const WorkerOptions* options = nullptr;
  const LauncherEnvironment* launcher = nullptr;
  MpiRuntime* mpi = nullptr;                      // null unless --transport=mpi
  TcpRendezvousOptions* rendezvous = nullptr;     // for --transport=tcp; the check takes its content
  std::string gpu;                                // this worker's GPUs, as the table names them; empty: none
  std::string nccl;                               // with --sync=nccl: the version of the library, if it opens
  std::string no_nccl;                            // with --sync=nccl: why the job could not use it; empty: it can
  std::function<void(const std::string&)> print;  // for the table, or a line; the text ends with a newline
};

struct CheckOutcome {
  int exit_code = 0;  // of common/flags/command_line.h
  // MPI does not answer: the process must end by MpiRuntime::ExitWithoutFinalize.
  bool mpi_is_stuck = false;
};

CheckOutcome RunCheck(const CheckParts& parts);

// Where this process is in the network: its host, its interfaces, and which of them Open MPI was told to use. For a
// process that learns nothing of the others.
std::string OwnPlace(const LauncherEnvironment& launcher);

}  // namespace starring

#endif  // STARRING_WORKER_CHECK_CHECK_H_
