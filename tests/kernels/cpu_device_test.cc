#include "kernels/cpu/cpu_device.h"

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/instruction_set.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/device_test_suite.h"

namespace starring {
namespace {

// Every way through the CPU device: the tiles and each clone of the loops, one thread and more threads than cores.
std::vector<DeviceMaker> Makers() {
  std::vector<DeviceMaker> makers;
  const char* const names[kInstructionSetCount] = {"Baseline", "Avx2", "Avx512"};
  for (int set = 0; set < kInstructionSetCount; ++set) {
    if (static_cast<InstructionSet>(set) > BestInstructionSet()) {
      std::cerr << "SKIPPED: this CPU has no " << names[set] << ", its code is not tested\n";
      continue;
    }
    for (const int threads : {1, 3}) {
      makers.push_back(
          {absl::StrCat(names[set], "Threads", threads),
           [=] { return CreateCpuDevice({.threads = threads, .instruction_set = static_cast<InstructionSet>(set)}); }});
    }
  }
  return makers;
}

INSTANTIATE_TEST_SUITE_P(Cpu, DeviceTest, testing::ValuesIn(Makers()), DeviceMaker::Name);

TEST(CpuDevice, NamesTheLibraryAndTheThreads) {
  EXPECT_THAT(CreateCpuDevice(1).value()->name(), testing::MatchesRegex("cpu \\(oneDNN 2\\.[0-9.]+, 1 thread\\)"));
  EXPECT_THAT(CreateCpuDevice(3).value()->name(), testing::EndsWith(", 3 threads)"));
}

}  // namespace
}  // namespace starring
