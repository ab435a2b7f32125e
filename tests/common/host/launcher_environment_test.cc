#include "common/host/launcher_environment.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace starring {
namespace {

LauncherEnvironment Read(const std::map<std::string, std::string>& variables) {
  return ReadLauncherEnvironment([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(LauncherEnvironment, NothingSetIsOneProcess) {
  const LauncherEnvironment environment = Read({});
  EXPECT_EQ(environment.launcher, Launcher::kNone);
  EXPECT_EQ(environment.rank, 0);
  EXPECT_EQ(environment.world_size, 1);
  EXPECT_EQ(environment.local_rank, 0);
  EXPECT_EQ(environment.local_size, 1);
  EXPECT_GE(environment.core_limits.cores, 1);
  EXPECT_FALSE(environment.cores_per_worker.empty());
  EXPECT_EQ(environment.cores_per_server, "");
}

TEST(LauncherEnvironment, OpenMpi) {
  const LauncherEnvironment environment = Read({{"OMPI_COMM_WORLD_RANK", "3"},
                                                {"OMPI_COMM_WORLD_SIZE", "8"},
                                                {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                                {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_EQ(environment.launcher, Launcher::kOpenMpi);
  EXPECT_EQ(environment.rank, 3);
  EXPECT_EQ(environment.world_size, 8);
  EXPECT_EQ(environment.local_rank, 1);
  EXPECT_EQ(environment.local_size, 2);
}

TEST(LauncherEnvironment, SrunStep) {
  const LauncherEnvironment environment = Read({{"SLURM_STEP_ID", "0"},
                                                {"SLURM_PROCID", "2"},
                                                {"SLURM_NTASKS", "8"},
                                                {"SLURM_STEP_NUM_TASKS", "4"},
                                                {"SLURM_NNODES", "8"},
                                                {"SLURM_STEP_NUM_NODES", "2"},
                                                {"SLURM_LOCALID", "1"},
                                                {"SLURM_JOB_ID", "7"},
                                                {"SLURM_RESTART_COUNT", "1"}});
  EXPECT_EQ(environment.launcher, Launcher::kSlurm);
  EXPECT_EQ(environment.rank, 2);
  EXPECT_EQ(environment.world_size, 4) << "the step's tasks count, not the allocation's";
  EXPECT_EQ(environment.local_rank, 1);
  EXPECT_EQ(environment.host_count, 2);
  EXPECT_EQ(environment.run_id, "slurm-7-1") << "the number of the restart tells attempts of one job apart";
}

TEST(LauncherEnvironment, SbatchScriptOutsideOfSrunIsOneProcess) {
  const LauncherEnvironment environment = Read({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}});
  EXPECT_EQ(environment.launcher, Launcher::kNone);
  EXPECT_EQ(environment.world_size, 1);
}

TEST(LauncherEnvironment, MpirunInsideOfSlurmCountsFirst) {
  const LauncherEnvironment environment = Read({{"OMPI_COMM_WORLD_RANK", "1"},
                                                {"OMPI_COMM_WORLD_SIZE", "2"},
                                                {"SLURM_STEP_ID", "0"},
                                                {"SLURM_PROCID", "0"},
                                                {"SLURM_NTASKS", "4"}});
  EXPECT_EQ(environment.launcher, Launcher::kOpenMpi);
  EXPECT_EQ(environment.rank, 1);
  EXPECT_EQ(environment.world_size, 2);
}

TEST(LauncherEnvironment, OtherMpisLauncher) {
  const LauncherEnvironment environment = Read({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}});
  EXPECT_EQ(environment.launcher, Launcher::kPmi);
  EXPECT_EQ(environment.rank, 1);
  EXPECT_EQ(environment.world_size, 2);
}

TEST(LauncherEnvironment, NonsenseCountsAsNotSet) {
  EXPECT_EQ(Read({{"OMPI_COMM_WORLD_RANK", "one"}, {"OMPI_COMM_WORLD_SIZE", "2"}}).launcher, Launcher::kNone);
  EXPECT_EQ(Read({{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "2"}}).launcher, Launcher::kNone);
  EXPECT_EQ(Read({{"OMPI_COMM_WORLD_RANK", "-1"}, {"OMPI_COMM_WORLD_SIZE", "2"}}).launcher, Launcher::kNone);
  EXPECT_EQ(Read({{"OMPI_COMM_WORLD_RANK", "0"}}).launcher, Launcher::kNone);
  EXPECT_EQ(Read({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "0"}}).launcher, Launcher::kNone);
}

TEST(LauncherEnvironment, CoresAsDeployLaunchPinnedThem) {
  const LauncherEnvironment environment =
      Read({{"STARRING_CORES_PER_WORKER", "0;1"}, {"STARRING_CORES_PER_SERVER", "2,3"}});
  EXPECT_EQ(environment.cores_per_worker, "0;1");
  EXPECT_EQ(environment.cores_per_server, "2,3");
}

TEST(LauncherEnvironment, SrunSaysThatRanksHaveGpusOfTheirOwn) {
  std::map<std::string, std::string> variables{{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}};
  EXPECT_FALSE(Read(variables).has_own_gpus);
  variables["SLURM_GPUS_PER_TASK"] = "1";
  EXPECT_TRUE(Read(variables).has_own_gpus);
  variables["OMPI_COMM_WORLD_RANK"] = "0";
  variables["OMPI_COMM_WORLD_SIZE"] = "2";
  EXPECT_FALSE(Read(variables).has_own_gpus) << "one task of Slurm's starts all ranks of a node";
}

TEST(LauncherEnvironment, NcclSharesGpusIfItIsTold) {
  EXPECT_FALSE(Read({}).nccl_may_share_gpus);
  EXPECT_FALSE(Read({{"NCCL_MULTI_RANK_GPU_ENABLE", "0"}}).nccl_may_share_gpus);
  EXPECT_TRUE(Read({{"NCCL_MULTI_RANK_GPU_ENABLE", "1"}}).nccl_may_share_gpus);
}

TEST(LauncherEnvironment, OutputIsOursUnlessMpirunOrSrunIsBetween) {
  EXPECT_TRUE(Read({}).output_is_ours);
  EXPECT_FALSE(Read({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}}).output_is_ours);
  EXPECT_TRUE(Read({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"STARRING_CORES_PER_WORKER", "0;1"}})
                  .output_is_ours)
      << "deploy/launch connects the ranks to its own terminal";
}

TEST(LauncherEnvironment, ALauncherThatIsNotReadIsNamed) {
  EXPECT_EQ(Read({{"RANK", "0"}, {"WORLD_SIZE", "2"}}).foreign, "RANK=0 WORLD_SIZE=2 (torchrun or Kubeflow)");
  EXPECT_EQ(Read({{"PMIX_RANK", "1"}}).foreign, "PMIX_RANK=1 (PMIx)");
  EXPECT_EQ(Read({{"FLUX_TASK_RANK", "1"}, {"FLUX_JOB_SIZE", "4"}}).foreign, "FLUX_TASK_RANK=1 FLUX_JOB_SIZE=4 (Flux)");
  // One process is no job of several, and a rank without a size may mean anything.
  EXPECT_EQ(Read({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).foreign, "");
  EXPECT_EQ(Read({{"RANK", "3"}}).foreign, "");
  // mpirun and srun set PMIX_RANK too, and deploy/launch may itself run under torchrun.
  const std::map<std::string, std::string> torchrun = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"PMIX_RANK", "0"}};
  for (const std::map<std::string, std::string>& known : std::vector<std::map<std::string, std::string>>{
           {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}},
           {{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}},
           {{"STARRING_CORES_PER_WORKER", "0;1"}}}) {
    std::map<std::string, std::string> both = torchrun;
    both.insert(known.begin(), known.end());
    EXPECT_EQ(Read(both).foreign, "");
  }
}

TEST(LauncherEnvironment, WhatChangesArithmeticIsKept) {
  const LauncherEnvironment environment =
      Read({{"ONEDNN_MAX_CPU_ISA", "AVX2"}, {"DNNL_MAX_CPU_ISA", ""}, {"OMP_NUM_THREADS", "1"}});
  ASSERT_EQ(environment.arithmetic.size(), 1u);
  EXPECT_EQ(environment.arithmetic[0], (std::pair<std::string, std::string>("ONEDNN_MAX_CPU_ISA", "AVX2")));
}

}  // namespace
}  // namespace starring
