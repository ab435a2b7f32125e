#include "worker/data/data_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>

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

}  // namespace
}  // namespace starring
