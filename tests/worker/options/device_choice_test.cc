// Runs on emulated GPUs.
#include "worker/options/device_choice.h"

#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cuda_emulation/emulated_gpu.h"

namespace starring {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class DeviceChoiceTest : public testing::Test {
 protected:
  ~DeviceChoiceTest() override { cuda_emulation::Gpu() = {}; }

  static LauncherEnvironment Mpirun(int local_rank, int local_size) {
    return {.launcher = Launcher::kOpenMpi,
            .rank = 100 + local_rank,  // a GPU must be chosen by the local rank
            .world_size = 200,
            .local_rank = local_rank,
            .local_size = local_size};
  }
  static std::string Refusal(WorkerOptions options, const LauncherEnvironment& launcher = {}) {
    const auto choice = ChooseDevice(launcher, &options);
    EXPECT_EQ(choice.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(choice.status().message());
  }

  WorkerOptions options_;
};

TEST_F(DeviceChoiceTest, EachWorkerOfAMachineTakesTheGpuOfItsLocalRank) {
  for (const int local_rank : {0, 1}) {
    WorkerOptions options = options_;
    const auto choice = ChooseDevice(Mpirun(local_rank, 2), &options);
    ASSERT_TRUE(choice.ok()) << choice.status();
    ASSERT_NE(choice->cuda, nullptr);
    EXPECT_EQ(choice->cuda->info().ordinal, local_rank);
    EXPECT_EQ(options.device, DeviceKind::kCuda);
    EXPECT_THAT(choice->note, IsEmpty());
  }
}

TEST_F(DeviceChoiceTest, MoreWorkersThanGpusAreRefusedWithNumbers) {
  for (const DeviceKind device : {DeviceKind::kAuto, DeviceKind::kCuda}) {
    options_.device = device;
    for (int local_rank = 0; local_rank < 5; ++local_rank) {
      options_.rank = 100 + local_rank;
      EXPECT_EQ(Refusal(options_, Mpirun(local_rank, 5)),
                absl::StrCat("5 workers on this machine, but the driver shows worker ", 100 + local_rank,
                             " only 2 GPUs: start fewer, let them share with --share_gpus, or give --device=cpu"));
    }
  }
}

TEST_F(DeviceChoiceTest, OnTheCpuAnyNumberOfWorkersWorks) {
  options_.device = DeviceKind::kCpu;
  EXPECT_TRUE(ChooseDevice(Mpirun(3, 5), &options_).ok());
  options_.device = DeviceKind::kAuto;
  cuda_emulation::Gpu() = {.driver_version = 0};
  EXPECT_TRUE(ChooseDevice(Mpirun(3, 5), &options_).ok());
}

TEST_F(DeviceChoiceTest, MoreWorkersThanGpusShareThemIfTheyMay) {
  options_.share_gpus = true;
  const auto choice = ChooseDevice(Mpirun(3, 5), &options_);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->cuda->info().ordinal, 1);
  EXPECT_EQ(choice->note, "note: 5 workers share 2 GPUs of this machine");
}

// Without Slurm's list of tasks, a worker knows only how many workers of its machine come before it. So srun's first
// two workers find a GPU each, and the third must refuse.
TEST_F(DeviceChoiceTest, UnderSrunWorkersBeyondTheGpusAreRefused) {
  LauncherEnvironment srun = Mpirun(1, 2);
  srun.launcher = Launcher::kSlurm;
  WorkerOptions options = options_;
  EXPECT_TRUE(ChooseDevice(srun, &options).ok());
  srun.local_rank = 2;
  srun.local_size = 3;
  EXPECT_THAT(Refusal(options_, srun), HasSubstr("at least 3 workers on this machine"));
}

TEST_F(DeviceChoiceTest, RanksWithGpusOfTheirOwnSeeOneEach) {
  cuda_emulation::Gpu() = {.count = 1};
  LauncherEnvironment srun = Mpirun(3, 4);
  srun.launcher = Launcher::kSlurm;
  srun.has_own_gpus = true;
  const auto choice = ChooseDevice(srun, &options_);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->cuda->info().ordinal, 0);
  EXPECT_THAT(choice->note, IsEmpty());
}

TEST_F(DeviceChoiceTest, AStarByHandOnThisMachineIsHereAsAWhole) {
  options_.sync = Sync::kStar;
  options_.transport = TransportKind::kGrpc;
  options_.servers = {"127.0.0.1:4000", "localhost:4001"};
  options_.rank = 1;
  options_.world_size = 2;
  WorkerOptions options = options_;
  const auto choice = ChooseDevice({}, &options);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->cuda->info().ordinal, 1);
  options_.world_size = 3;
  EXPECT_THAT(Refusal(options_), HasSubstr("3 workers on this machine, but the driver shows worker 1 only 2 GPUs"));
}

TEST_F(DeviceChoiceTest, AStarOfDeployLaunchIsHereAsAWhole) {
  options_.world_size = 3;
  EXPECT_THAT(Refusal(options_, {.by_deploy_launch = true}), HasSubstr("3 workers on this machine"));
}

TEST_F(DeviceChoiceTest, RanksThatMeetAtLoopbackAreOnOneMachine) {
  options_.sync = Sync::kRing;
  options_.transport = TransportKind::kTcp;
  options_.rendezvous = "127.0.0.1:4000";
  options_.rank = 2;
  options_.world_size = 3;
  EXPECT_THAT(Refusal(options_), HasSubstr("3 workers on this machine"));
  options_.rendezvous = "10.0.0.7:4000";
  const auto choice = ChooseDevice({}, &options_);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_THAT(choice->note, HasSubstr("up to 3 workers"));
}

TEST_F(DeviceChoiceTest, OfAStarOverSeveralMachinesNobodyKnowsWhoIsHere) {
  cuda_emulation::Gpu() = {.count = 1};
  options_.sync = Sync::kStar;
  options_.transport = TransportKind::kGrpc;
  options_.servers = {"127.0.0.1:4000", "10.0.0.7:4000"};
  options_.rank = 3;
  options_.world_size = 4;
  const auto choice = ChooseDevice({}, &options_);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->cuda->info().ordinal, 0);
  EXPECT_EQ(choice->note, "note: up to 4 workers share 1 GPU of this machine");
}

TEST_F(DeviceChoiceTest, NcclIsRefusedWhereThereIsNoGpu) {
  cuda_emulation::Gpu() = {.driver_version = 0};
  options_.sync = Sync::kNccl;
  options_.transport = TransportKind::kMpi;
  EXPECT_THAT(Refusal(options_), HasSubstr("flag --sync cannot be \"nccl\": "));
}

TEST_F(DeviceChoiceTest, AutoIsTheCpuWhereThereIsNoGpuAndSaysNothing) {
  cuda_emulation::Gpu() = {.driver_version = 0};
  const auto choice = ChooseDevice({}, &options_);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->cuda, nullptr);
  EXPECT_EQ(options_.device, DeviceKind::kCpu);
  EXPECT_THAT(choice->note, IsEmpty());
}

TEST_F(DeviceChoiceTest, AutoSaysWhyAGpuIsNotTaken) {
  cuda_emulation::Gpu() = {.compute_major = 7};
  const auto choice = ChooseDevice({}, &options_);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->cuda, nullptr);
  EXPECT_THAT(choice->note, HasSubstr("on the CPU: GPU 0 (emulated GPU) has compute capability 7.0"));
}

TEST_F(DeviceChoiceTest, AutoSaysWhyADriverThatIsThereIsOfNoUse) {
  for (const auto& [gpu, why] : {std::pair(cuda_emulation::EmulatedGpu{.driver_version = 12080}, "CUDA 12.8"),
                                 std::pair(cuda_emulation::EmulatedGpu{.driver_error = 802}, "counting GPUs")}) {
    cuda_emulation::Gpu() = gpu;
    WorkerOptions options = options_;
    const auto choice = ChooseDevice({}, &options);
    ASSERT_TRUE(choice.ok()) << choice.status();
    EXPECT_EQ(choice->cuda, nullptr);
    EXPECT_THAT(choice->note, HasSubstr("note: on the CPU: "));
    EXPECT_THAT(choice->note, HasSubstr(why));
  }
}

// The current GPU belongs to a thread, so each case has a new one.
TEST_F(DeviceChoiceTest, TheGpuThatWillBeChosenIsMadeCurrentBefore) {
  for (const int local_rank : {1, 0}) {
    std::thread([&] {
      MakeGpuCurrent(Mpirun(local_rank, 2), options_);
      EXPECT_EQ(cuda_emulation::CurrentGpu(), local_rank);
    }).join();
  }
  std::thread([&] {
    WorkerOptions on_cpu = options_;
    on_cpu.device = DeviceKind::kCpu;
    MakeGpuCurrent(Mpirun(1, 2), on_cpu);
    cuda_emulation::Gpu() = {.driver_error = 802};
    MakeGpuCurrent(Mpirun(1, 2), options_);
    EXPECT_EQ(cuda_emulation::CurrentGpu(), -1);
  }).join();
}

TEST_F(DeviceChoiceTest, CpuIsTheCpu) {
  options_.device = DeviceKind::kCpu;
  const auto choice = ChooseDevice({}, &options_);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->cuda, nullptr);
}

TEST_F(DeviceChoiceTest, ConvIsResolved) {
  const auto resolved = [](const cuda_emulation::EmulatedGpu& gpu, const char* device, const char* conv,
                           CudaMath math = CudaMath::kFp32) {
    cuda_emulation::Gpu() = gpu;
    WorkerOptions options{.device = ValueOf(kDevices, device), .math = math, .conv = ValueOf(kConvolutions, conv)};
    const auto choice = ChooseDevice({}, &options);
    return choice.ok() ? NameOf(kConvolutions, options.conv) : std::string(choice.status().message());
  };
  EXPECT_EQ(resolved({}, "cuda", "auto"), "own");
  EXPECT_EQ(resolved({.cudnn_version = 91900}, "cuda", "auto"), "own");
  EXPECT_EQ(resolved({.cudnn_version = 91900}, "cuda", "auto", CudaMath::kTf32), "cudnn");
  EXPECT_EQ(resolved({.cudnn_version = 91900}, "cuda", "auto", CudaMath::kBf16), "cudnn");
  EXPECT_EQ(resolved({}, "cuda", "auto", CudaMath::kTf32), "own");
  EXPECT_EQ(resolved({.cudnn_version = 91900}, "auto", "cudnn"), "cudnn");
  EXPECT_EQ(resolved({.cudnn_version = 91900}, "cuda", "own"), "own");
  EXPECT_EQ(resolved({.driver_version = 0}, "auto", "auto"), "auto");
  EXPECT_EQ(resolved({.driver_version = 0}, "cpu", "own"), "auto");
  EXPECT_THAT(resolved({.driver_version = 0}, "auto", "cudnn"),
              HasSubstr("flag --conv cannot be \"cudnn\": there is no CUDA driver"));
  for (const char* device : {"cuda", "auto"}) {
    EXPECT_THAT(resolved({}, device, "cudnn"), HasSubstr("flag --conv cannot be \"cudnn\": give --conv=auto"));
    EXPECT_THAT(resolved({.cudnn_version = 91900, .cudnn_starts = false}, device, "cudnn"),
                HasSubstr("CUDNN_STATUS_NOT_INITIALIZED"));
  }
}

TEST_F(DeviceChoiceTest, AutoSaysWhyACudnnThatIsThereIsOfNoUse) {
  EXPECT_THAT(ChooseDevice({}, &options_)->note, IsEmpty());
  cuda_emulation::Gpu() = {.cudnn_version = 91900, .cudnn_starts = false};
  options_.conv = CudaConvolutions::kAuto;
  options_.math = CudaMath::kTf32;
  const auto choice = ChooseDevice({}, &options_);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_THAT(choice->note, HasSubstr("note: convolutions by kernels of our own: cudnnCreate: CUDNN_STATUS_NOT_INIT"));
  EXPECT_EQ(options_.conv, CudaConvolutions::kOwn);
}

TEST_F(DeviceChoiceTest, RanksCompareTheVersionAndTheEngines) {
  using Facts = std::vector<std::pair<std::string, std::string>>;
  cuda_emulation::Gpu() = {.cudnn_version = 91002};
  options_.conv = CudaConvolutions::kCudnn;
  auto choice = ChooseDevice({}, &options_).value();
  EXPECT_EQ(DeviceFacts(*choice.cuda), (Facts{{"cudnn.version", "9.10.2"}}));
  const Conv2dSpec spec = {.batch = 2, .in_height = 1, .in_width = 1, .in_channels = 3, .out_channels = 1};
  EXPECT_TRUE(choice.cuda->CreateOperation(spec).ok());
  const Facts facts = DeviceFacts(*choice.cuda);
  ASSERT_EQ(facts.size(), 2u);
  EXPECT_THAT(facts[1].first, testing::StartsWith("cudnn.engines of a convolution 2 x 1 x 1 x 3 to 1, kernel 1 x 1"));
  EXPECT_THAT(facts[1].second, testing::StartsWith("forward 7 ("));
  options_.conv = CudaConvolutions::kOwn;
  EXPECT_THAT(DeviceFacts(*ChooseDevice({}, &options_)->cuda), IsEmpty());
}

TEST_F(DeviceChoiceTest, WhatCannotBeHadIsRefused) {
  cuda_emulation::Gpu() = {.count = 0};
  EXPECT_THAT(Refusal({.device = DeviceKind::kCuda}),
              HasSubstr("flag --device cannot be \"cuda\": the CUDA driver shows no GPU"));
  EXPECT_THAT(Refusal({.math = CudaMath::kTf32}),
              HasSubstr("flag --math cannot be \"tf32\": the CUDA driver shows no GPU"));
  cuda_emulation::Gpu() = {.memory_bytes = 1 << 20};
  EXPECT_THAT(Refusal({.device = DeviceKind::kCuda}), HasSubstr("1048576 of 1048576 are free"));
}

}  // namespace
}  // namespace starring
