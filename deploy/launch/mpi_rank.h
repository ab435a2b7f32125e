// Ranks under mpirun. The launcher is not their parent, mpirun is, so the launcher cannot pin them or give them pipes.
// Therefore mpirun starts this very program, as `launch --run_rank=FOLDER ...`, once for each rank. That process
//   1. pins itself and asks the kernel to kill it when mpirun dies (Open MPI alone would let the ranks live on),
//   2. notes its process id in FOLDER, where the launcher looks for ranks that have ended,
//   3. connects its output to the launcher's pipes in FOLDER,
//   4. becomes the worker.
//
// Thread safety: one thread.
#ifndef STARRING_DEPLOY_LAUNCH_MPI_RANK_H_
#define STARRING_DEPLOY_LAUNCH_MPI_RANK_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "deploy/launch/child_process.h"

namespace starring {

struct MpiJob {
  int rank_count = 1;
  // Contains the write ends of the launcher's pipes, under the names of RankPath.
  std::string folder;
  std::vector<std::vector<int>> cores;  // by rank
  std::vector<std::string> worker;      // program and flags
  // If true, mpirun prints no comment on ranks that end with another exit code than 0.
  bool quiet = false;
};

// The path of the rank's "out", "err" or "pid" in the folder.
std::string RankPath(const std::string& folder, int rank, const std::string& what);

// Sets program and argv of `spec`. NotFound if mpirun is neither in the folder of this program nor on PATH.
absl::Status SetMpirunCommand(const MpiJob& job, ChildSpec& spec);

// Sets what Open MPI must know about this machine and user. Variables that the user has set keep their values.
void SetMpiDefaults(int rank_count, int core_count, Environment& environment);

// Has Open MPI put the ranks' shared memory into `folder`, which is the launcher's, if `usual` is too small for it, as
// /dev/shm of a container is. Else Open MPI prints lines that name no cause, and sends all messages through sockets.
void SetMpiMemory(int rank_count, const std::string& folder, Environment& environment,
                  const std::string& usual = "/dev/shm");

// How many descriptors mpirun may need for its ranks. With fewer it hangs.
int64_t MpirunDescriptors(int rank_count);

// How many ranks have noted their process ids.
[[nodiscard]] int CountStartedRanks(const std::string& folder, int rank_count);

// How many ranks have started and ended again, according to the process ids that they noted.
[[nodiscard]] int CountEndedRanks(const std::string& folder, int rank_count, pid_t mpirun);

// Kills the ranks themselves. mpirun, which waits for them, then cleans up and ends.
void KillRanks(const std::string& folder, int rank_count, pid_t mpirun);

// True for a rank's command line, which the caller then passes to RunRank.
[[nodiscard]] bool IsRankCommand(int argc, const char* const* argv);
[[noreturn]] void RunRank(int argc, const char* const* argv);

}  // namespace starring

#endif  // STARRING_DEPLOY_LAUNCH_MPI_RANK_H_
