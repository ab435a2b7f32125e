#include "common/host/launcher_environment.h"

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/host/library_search.h"
#include "common/host/own_cores.h"

namespace starring {
namespace {

constexpr int kNotSet = -1;

// oneDNN reads each of its variables under two names. The last two are cuBLAS's and the CUDA libraries'.
constexpr const char* kArithmeticVariables[] = {
    "ONEDNN_MAX_CPU_ISA",         "DNNL_MAX_CPU_ISA",         "ONEDNN_CPU_ISA_HINTS",    "DNNL_CPU_ISA_HINTS",
    "ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE"};

// The first of `names` that holds a whole number of 0 or more.
int ReadNumber(EnvironmentLookup lookup, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const char* const text = lookup(name);
    int value = 0;
    // The environment is input from outside: a variable that is no such number counts as not set.
    if (text != nullptr && absl::SimpleAtoi(text, &value) && value >= 0) return value;
  }
  return kNotSet;
}

std::string ReadText(EnvironmentLookup lookup, const char* name) {
  const char* const text = lookup(name);
  return text == nullptr ? "" : text;
}

// The values of one launcher's variables; kNotSet where a variable is missing.
struct Source {
  Launcher launcher;
  int rank;
  int world_size;
  int local_rank;
  int local_size;
};

// Launchers whose ranks find each other in ways of their own.
struct ForeignLauncher {
  const char* rank;
  const char* size;  // null: no variable has it
  const char* name;
};
constexpr ForeignLauncher kForeignLaunchers[] = {
    {"RANK", "WORLD_SIZE", "torchrun or Kubeflow"},
    {"PMIX_RANK", nullptr, "PMIx"},
    {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MVAPICH"},
    {"HOROVOD_RANK", "HOROVOD_SIZE", "horovodrun"},
    {"FLUX_TASK_RANK", "FLUX_JOB_SIZE", "Flux"},
    {"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "jsrun"},
};

// See LauncherEnvironment::foreign.
std::string ForeignVariables(EnvironmentLookup lookup) {
  for (const ForeignLauncher& one : kForeignLaunchers) {
    const int rank = ReadNumber(lookup, {one.rank});
    if (rank == kNotSet) continue;
    if (one.size == nullptr) return absl::StrCat(one.rank, "=", rank, " (", one.name, ")");
    const int size = ReadNumber(lookup, {one.size});
    if (size > 1) return absl::StrCat(one.rank, "=", rank, " ", one.size, "=", size, " (", one.name, ")");
  }
  return "";
}

bool IsUsable(const Source& source) {
  // Variables that do not fit together may be left from another launcher. The next source is asked then.
  return source.rank != kNotSet && source.world_size != kNotSet && source.rank < source.world_size;
}

}  // namespace

std::string_view LauncherName(Launcher launcher) {
  switch (launcher) {
    case Launcher::kNone:
      return "none";
    case Launcher::kOpenMpi:
      return "mpirun";
    case Launcher::kSlurm:
      return "srun";
    case Launcher::kPmi:
      return "a PMI launcher";
  }
  return "unknown";
}

LauncherEnvironment ReadLauncherEnvironment(EnvironmentLookup lookup) {
  const auto number = [&](std::initializer_list<const char*> names) { return ReadNumber(lookup, names); };
  LauncherEnvironment environment;
  const std::vector<int> cores = OwnCores();
  environment.core_limits = ReadCoreLimits();
  environment.cores_per_worker = ReadText(lookup, "STARRING_CORES_PER_WORKER");
  // Only deploy/launch sets this variable, and it always does.
  environment.by_deploy_launch = !environment.cores_per_worker.empty();
  if (environment.cores_per_worker.empty()) environment.cores_per_worker = absl::StrJoin(cores, ",");
  environment.cores_per_server = ReadText(lookup, "STARRING_CORES_PER_SERVER");

  for (const char* const name : kArithmeticVariables) {
    if (const std::string value = ReadText(lookup, name); !value.empty())
      environment.arithmetic.emplace_back(name, value);
  }
  environment.gpu_library_folders = GpuLibraryFolders(lookup);
  const char* const may_share = lookup("NCCL_MULTI_RANK_GPU_ENABLE");
  environment.nccl_may_share_gpus = may_share != nullptr && std::string_view(may_share) == "1";
  environment.mpi_interfaces_included = ReadText(lookup, "OMPI_MCA_btl_tcp_if_include");
  environment.mpi_interfaces_excluded = ReadText(lookup, "OMPI_MCA_btl_tcp_if_exclude");

  // mpirun inside a Slurm allocation leaves Slurm's variables in place, so Open MPI's count first. Slurm sets
  // SLURM_PROCID in a batch script too, which has no other ranks; only srun also sets the step's number.
  const bool in_slurm_step = number({"SLURM_STEP_ID", "SLURM_STEPID"}) != kNotSet;
  const Source sources[] = {
      {Launcher::kOpenMpi, number({"OMPI_COMM_WORLD_RANK"}), number({"OMPI_COMM_WORLD_SIZE"}),
       number({"OMPI_COMM_WORLD_LOCAL_RANK"}), number({"OMPI_COMM_WORLD_LOCAL_SIZE"})},
      {Launcher::kSlurm, in_slurm_step ? number({"SLURM_PROCID"}) : kNotSet,
       // The step's number comes first, because srun may start fewer tasks than the job has.
       number({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"}), number({"SLURM_LOCALID"}), kNotSet},
      {Launcher::kPmi, number({"PMI_RANK"}), number({"PMI_SIZE"}), number({"MPI_LOCALRANKID"}),
       number({"MPI_LOCALNRANKS"})},
  };
  for (const Source& source : sources) {
    if (!IsUsable(source)) continue;
    environment.launcher = source.launcher;
    environment.rank = source.rank;
    environment.world_size = source.world_size;
    // A local rank beyond the job's size is left from another launcher.
    environment.local_rank = source.local_rank < source.world_size ? std::max(0, source.local_rank) : 0;
    // A launcher that does not give the size has started at least the ranks up to this one on this host.
    environment.local_size = std::max(environment.local_rank + 1, source.local_size);
    if (source.launcher == Launcher::kSlurm) {
      environment.host_count = std::max(1, number({"SLURM_STEP_NUM_NODES", "SLURM_NNODES"}));
    }
    break;
  }
  if (environment.launcher == Launcher::kNone && !environment.by_deploy_launch) {
    environment.foreign = ForeignVariables(lookup);
  }
  // The number of the restart keeps a worker of an earlier attempt out of the next attempt's job.
  if (in_slurm_step && !ReadText(lookup, "SLURM_JOB_ID").empty()) {
    environment.run_id =
        absl::StrCat("slurm-", ReadText(lookup, "SLURM_JOB_ID"), "-", std::max(0, number({"SLURM_RESTART_COUNT"})));
  }
  // Under mpirun in a Slurm job the variable says nothing: one Slurm task starts all ranks of a node.
  environment.has_own_gpus =
      environment.launcher == Launcher::kSlurm && !ReadText(lookup, "SLURM_GPUS_PER_TASK").empty();
  // deploy/launch connects the output of mpirun's ranks itself.
  environment.output_is_ours = environment.launcher == Launcher::kNone || environment.by_deploy_launch;
  return environment;
}

}  // namespace starring
