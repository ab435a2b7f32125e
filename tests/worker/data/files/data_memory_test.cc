#include "worker/data/files/data_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::HasSubstr;

TEST(DataMemoryTest, WhatTheMachineHasIsGranted) {
  EXPECT_TRUE(CheckDataFits("f", 0).ok());
  EXPECT_TRUE(CheckDataFits("f", 1 << 20).ok());
  const absl::Status status = CheckDataFits("folder/f", int64_t{1} << 50);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("folder/f needs 1125899906.8 MB of memory, and"));
}

TEST(DataMemoryTest, TheLimitOfAddressesIsNamed) {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  rlimit tight = before;
  tight.rlim_cur = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE)) + (64 << 20);
  ASSERT_EQ(setrlimit(RLIMIT_AS, &tight), 0);
  const absl::Status small = CheckDataFits("f", 1 << 20), large = CheckDataFits("f", 65 << 20);
  setrlimit(RLIMIT_AS, &before);
  EXPECT_TRUE(small.ok()) << small;
  EXPECT_EQ(large.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(large.message()), HasSubstr("raise ulimit -v"));
}

TEST(DataMemoryTest, RoomDoubles) {
  std::vector<int32_t> data;
  ASSERT_TRUE(MakeRoom("f", 1, data).ok());
  EXPECT_EQ(data.capacity(), 64u);
  data.assign(64, 7);
  ASSERT_TRUE(MakeRoom("f", 0, data).ok());
  EXPECT_EQ(data.capacity(), 64u);
  ASSERT_TRUE(MakeRoom("f", 1, data).ok());
  EXPECT_EQ(data.capacity(), 128u);
  ASSERT_TRUE(MakeRoom("f", 1000, data).ok());
  EXPECT_EQ(data.capacity(), 1064u);
  EXPECT_EQ(data, std::vector<int32_t>(64, 7));
  const absl::Status status = MakeRoom("folder/f", int64_t{1} << 50, data);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("folder/f needs 4503599627.4 MB of memory, and"));
}

// A machine with 8.2 GB to spare, on which this process's control group has 20 MB left.
TEST(DataMemoryTest, TheLimitOfTheControlGroupCounts) {
  const std::string root = testing::TempDir() + "/limited";
  const auto write = [&](const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root + "/" + path).parent_path());
    std::ofstream(root + "/" + path) << text;
  };
  write("proc/meminfo", "MemAvailable:    8000000 kB\n");
  write("proc/self/cgroup", "0::/job\n");
  write("sys/fs/cgroup/job/memory.max", "120000000\n");
  write("sys/fs/cgroup/job/memory.current", "100000000\n");
  EXPECT_TRUE(CheckDataFits("folder/f", 20'000'000, root).ok());
  const absl::Status status = CheckDataFits("folder/f", 157'000'000, root);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("folder/f needs 157.0 MB of memory, and 20.0 MB are left to this process by the machine and its "
                "control group: give it more memory, or use fewer data"));
}

}  // namespace
}  // namespace starring
