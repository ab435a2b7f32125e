// mpirun starts the ranks of a ring, so the launcher is not their parent. It puts itself between the two: mpirun starts
// `launch --run_rank=FOLDER ...` as every rank, which pins itself, connects its output to the launcher's pipes, sees to
// it that the rank dies with mpirun (Open MPI alone lets ranks live on), and then becomes the worker.
#ifndef STARRING_DEPLOY_LAUNCH_MPI_RANK_H_
#define STARRING_DEPLOY_LAUNCH_MPI_RANK_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "deploy/launch/child_process.h"
#include "deploy/launch/environment.h"

namespace starring {

struct MpiJob {
  int rank_count = 1;
  // Holds the ends of the launcher's pipes under RankPath's names.
  std::string folder;
  std::vector<std::vector<int>> cores;  // by rank
  std::vector<std::string> worker;      // program and flags
  // mpirun does not comment on ranks that end with another code than 0.
  bool quiet = false;
};

// Where rank's "out", "err" or "pid" is.
std::string RankPath(const std::string& folder, int rank, const std::string& what);

// Program and argv of mpirun for this job. NotFound when mpirun is neither in the folder of this program nor on PATH.
absl::Status SetMpirunCommand(const MpiJob& job, ChildSpec& spec);

// What Open MPI needs to know about this machine and user; only where the user has not said otherwise.
void SetMpiDefaults(int rank_count, int core_count, Environment& environment);

// How many ranks have started and ended again, by what they noted about themselves.
int CountEndedRanks(const std::string& folder, int rank_count, pid_t mpirun);

// Kills the ranks themselves, so that mpirun has nothing to wait for and cleans up behind them.
void KillRanks(const std::string& folder, int rank_count, pid_t mpirun);

// True for the command line of a rank; RunRank then never returns.
bool IsRankCommand(int argc, const char* const* argv);
[[noreturn]] void RunRank(int argc, const char* const* argv);

}  // namespace starring

#endif  // STARRING_DEPLOY_LAUNCH_MPI_RANK_H_
