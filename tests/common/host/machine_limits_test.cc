#include "common/host/machine_limits.h"

#include <sys/resource.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

namespace fs = std::filesystem;

// The files of a made-up machine with 8,000,000 KiB to spare.
class Machine {
 public:
  explicit Machine(const std::string& name) : root_(absl::StrCat(std::getenv("TEST_TMPDIR"), "/", name)) {
    Write("proc/meminfo", "MemTotal:       16000000 kB\nMemFree: 1000 kB\nMemAvailable:    8000000 kB\n");
  }
  void Write(const std::string& path, const std::string& text) const {
    fs::create_directories(fs::path(root_ + "/" + path).parent_path());
    std::ofstream(root_ + "/" + path) << text;
  }
  int64_t Available() const { return AvailableMemoryBytes(root_).value(); }
  double Quota() const { return ReadCoreLimits(root_).quota; }

 private:
  const std::string root_;
};

TEST(MachineLimitsTest, TakesTheLowestOfMachineAndControlGroups) {
  const Machine machine("version2");
  EXPECT_EQ(machine.Available(), int64_t{8'000'000} * 1024);
  machine.Write("proc/self/cgroup", "0::/system.slice/job_7/step_0\n");
  EXPECT_EQ(machine.Available(), int64_t{8'000'000} * 1024);  // the files of this group are not visible
  machine.Write("sys/fs/cgroup/system.slice/job_7/step_0/memory.max", "max\n");
  EXPECT_EQ(machine.Available(), int64_t{8'000'000} * 1024);
  machine.Write("sys/fs/cgroup/system.slice/job_7/memory.max", "2000000000\n");
  EXPECT_EQ(machine.Available(), 2'000'000'000);
  machine.Write("sys/fs/cgroup/memory.max", "1000000000\n");  // a container sees its own group as the highest
  EXPECT_EQ(machine.Available(), 1'000'000'000);
}

TEST(MachineLimitsTest, KnowsControlGroupsOfVersion1) {
  const Machine machine("version1");
  machine.Write("proc/self/cgroup", "11:cpu,cpuacct:/slurm\n4:memory:/slurm/job_7\n0::/\n");
  machine.Write("sys/fs/cgroup/memory/slurm/memory.limit_in_bytes", "3000000000\n");
  machine.Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // no limit
  EXPECT_EQ(machine.Available(), 3'000'000'000);
}

TEST(MachineLimitsTest, WhatAGroupUsesIsNotFreeButItsFileCacheIs) {
  const Machine machine("used");
  machine.Write("proc/self/cgroup", "0::/job\n");
  machine.Write("sys/fs/cgroup/job/memory.max", "4000000000\n");
  machine.Write("sys/fs/cgroup/job/memory.current", "3000000000\n");
  EXPECT_EQ(machine.Available(), 1'000'000'000);
  machine.Write("sys/fs/cgroup/job/memory.stat", "anon 1000000000\ninactive_file 1100000000\nactive_file 400000000\n");
  EXPECT_EQ(machine.Available(), 2'500'000'000);
  machine.Write("sys/fs/cgroup/job/memory.current", "9000000000\n");  // for a moment a group may be above its limit
  EXPECT_EQ(machine.Available(), 0);
}

TEST(MachineLimitsTest, WhatAGroupOfVersion1UsesIsNotFreeButItsFileCacheIs) {
  const Machine machine("used1");
  machine.Write("proc/self/cgroup", "4:memory:/job\n");
  machine.Write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "4000000000\n");
  machine.Write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "3000000000\n");
  EXPECT_EQ(machine.Available(), 1'000'000'000);
  machine.Write("sys/fs/cgroup/memory/job/memory.stat",
                "inactive_file 7\ntotal_inactive_file 300000000\ntotal_active_file 1200000000\n");
  EXPECT_EQ(machine.Available(), 2'500'000'000);
}

TEST(MachineLimitsTest, TheTightestQuotaOfAGroupAndThoseAboveItCounts) {
  const Machine machine("quota2");
  EXPECT_EQ(machine.Quota(), 0);
  machine.Write("proc/self/cgroup", "0::/system.slice/job_7/step_0\n");
  EXPECT_EQ(machine.Quota(), 0);  // the files of this group are not visible
  machine.Write("sys/fs/cgroup/system.slice/job_7/step_0/cpu.max", "max 100000\n");
  EXPECT_EQ(machine.Quota(), 0);
  machine.Write("sys/fs/cgroup/system.slice/job_7/cpu.max", "150000 100000\n");
  EXPECT_EQ(machine.Quota(), 1.5);
  machine.Write("sys/fs/cgroup/system.slice/cpu.max", "400000 100000\n");
  EXPECT_EQ(machine.Quota(), 1.5);
  machine.Write("sys/fs/cgroup/cpu.max", "25000 50000\n");  // a container sees its own group as the highest
  EXPECT_EQ(machine.Quota(), 0.5);
}

TEST(MachineLimitsTest, KnowsQuotasOfVersion1) {
  const Machine machine("quota1");
  machine.Write("proc/self/cgroup", "11:cpu,cpuacct:/slurm/job_7\n4:memory:/slurm\n0::/\n");
  machine.Write("sys/fs/cgroup/cpu/slurm/job_7/cpu.cfs_quota_us", "-1\n");
  machine.Write("sys/fs/cgroup/cpu/slurm/job_7/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(machine.Quota(), 0);
  machine.Write("sys/fs/cgroup/cpu/slurm/cpu.cfs_quota_us", "300000\n");
  EXPECT_EQ(machine.Quota(), 0);  // a quota of no period
  machine.Write("sys/fs/cgroup/cpu/slurm/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(machine.Quota(), 3);
  // Without a link for each controller that is mounted with others.
  machine.Write("sys/fs/cgroup/cpu,cpuacct/slurm/cpu.cfs_quota_us", "50000\n");
  machine.Write("sys/fs/cgroup/cpu,cpuacct/slurm/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(machine.Quota(), 0.5);
}

TEST(MachineLimitsTest, AQuotaCountsAsWholeCoresAndNeverAsNone) {
  EXPECT_EQ(CountedCores({.cores = 2}), 2);
  EXPECT_EQ(CountedCores({.cores = 2, .quota = 0.5}), 1);
  EXPECT_EQ(CountedCores({.cores = 2, .quota = 1.9}), 1);
  EXPECT_EQ(CountedCores({.cores = 8, .quota = 2}), 2);
  EXPECT_EQ(CountedCores({.cores = 2, .quota = 64}), 2);
  EXPECT_EQ(CountedCores({.cores = 0, .quota = 4}), 1);
  EXPECT_EQ(CountedCores({}), 1);
  EXPECT_EQ(CoresText({.cores = 2, .quota = 0.5}), "2 cores, quota 0.5");
  EXPECT_EQ(CoresText({.cores = 64, .quota = 16.0 / 3}), "64 cores, quota 5.33");
  EXPECT_EQ(CoresText({.cores = 1}), "1 core");
  EXPECT_GE(ReadCoreLimits().cores, 1);
}

TEST(MachineLimitsTest, AMachineThatSaysNothingIsAnError) {
  EXPECT_EQ(AvailableMemoryBytes(absl::StrCat(std::getenv("TEST_TMPDIR"), "/nothing")).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(MachineLimitsTest, ThisMachineHasMemoryAndThisProgram) {
  const auto available = AvailableMemoryBytes();
  ASSERT_TRUE(available.ok()) << available.status();
  EXPECT_GT(*available, 0);
  EXPECT_GE(CountProcessesOfThisProgram(), 1);
}

TEST(MachineLimitsTest, CountsDescriptors) {
  EXPECT_EQ(WorkerDescriptors(0), kOtherDescriptorsMax);
  EXPECT_EQ(WorkerDescriptors(8), kOtherDescriptorsMax + 8);
  EXPECT_EQ(ServerDescriptors(1), ServerDescriptors(0) + kDescriptorsPerConnection);
  EXPECT_EQ(ServerDescriptors(int64_t{kWorldSizeMax} * kLanesMax + kMemberConnectionsMax), kDescriptorsMax);
}

TEST(MachineLimitsTest, RaisesDescriptorsAsFarAsAllowedAndNeverLowersThem) {
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_GE(limit.rlim_max, 64u);
  const rlimit low = {.rlim_cur = 32, .rlim_max = 64};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_EQ(RaiseDescriptorLimit(16), 32);
  EXPECT_EQ(RaiseDescriptorLimit(48), 48);
  EXPECT_EQ(RaiseDescriptorLimit(1 << 20), 64);
  EXPECT_EQ(RaiseDescriptorLimit(1), 64);
}

}  // namespace
}  // namespace starring
