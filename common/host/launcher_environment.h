// Reads the environment variables by which a launcher describes this process. The launchers are Open MPI's mpirun,
// srun, another PMI launcher (MPICH's mpiexec), and deploy/launch. No other file reads such variables.
#ifndef STARRING_COMMON_HOST_LAUNCHER_ENVIRONMENT_H_
#define STARRING_COMMON_HOST_LAUNCHER_ENVIRONMENT_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/host/machine_limits.h"

namespace starring {

enum class Launcher {
  kNone,     // a shell, or a batch script outside of srun
  kOpenMpi,  // mpirun of Open MPI: OMPI_COMM_WORLD_*
  kSlurm,    // srun: SLURM_PROCID inside of a step
  kPmi,      // mpiexec of another MPI: PMI_RANK, PMI_SIZE. Its ranks do not find each other through Open MPI.
};

std::string_view LauncherName(Launcher launcher);

struct LauncherEnvironment {
  Launcher launcher = Launcher::kNone;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  // among the ranks of this host
  int local_size = 1;  // ranks on this host; with srun a lower bound, the ranks up to this one
  int host_count = 1;  // hosts of the job, as srun says; 1 with other launchers, which do not say
  // deploy/launch has started the job: every process of the job is on this host.
  bool by_deploy_launch = false;
  // srun --gpus-per-task: Slurm has set aside a GPU for every rank, and may show each only its own.
  bool has_own_gpus = false;
  CoreLimits core_limits;  // of this process
  // Which cores each process of a role was pinned to, "0,1;2,3", from deploy/launch (STARRING_CORES_PER_WORKER and
  // STARRING_CORES_PER_SERVER). Without it: this process's own, and none for the servers.
  std::string cores_per_worker;
  std::string cores_per_server;
  // The variables of an unsupported launcher that has started several processes: "RANK=0 WORLD_SIZE=2 (torchrun or
  // Kubeflow)". Empty if no such variable is set, or if another launcher has started this process.
  std::string foreign;
  std::string run_id;  // the Slurm job and which start of it; empty outside of Slurm
  // The networks that the user allows or forbids Open MPI: btl_tcp_if_include, btl_tcp_if_exclude.
  std::string mpi_interfaces_included;
  std::string mpi_interfaces_excluded;
  // Variables by which libraries that compute choose their instructions or their precision, as (name, value): those
  // that are set and not empty.
  std::vector<std::pair<std::string, std::string>> arithmetic;
  std::vector<std::string> gpu_library_folders;  // see common/host/library_search.h
  bool nccl_may_share_gpus = false;              // NCCL_MULTI_RANK_GPU_ENABLE=1
  bool output_is_ours = true;  // if stdout is a terminal, it is the user's own and not one that mpirun or srun made
};

// Never fails: a variable that is missing or is no number counts as not set, and a launcher whose rank and world size
// do not fit together counts as none. `lookup` is getenv, or a test's. The process's own cores come from the scheduler
// and its control groups.
using EnvironmentLookup = absl::FunctionRef<const char*(const char* name)>;
LauncherEnvironment ReadLauncherEnvironment(EnvironmentLookup lookup);

}  // namespace starring

#endif  // STARRING_COMMON_HOST_LAUNCHER_ENVIRONMENT_H_
