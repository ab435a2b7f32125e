#include "kernels/cpu/cpu_device.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/instruction_set.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/device_test_suite.h"
#include "tests/kernels/instruction_sets.h"

namespace starring {
namespace {

// Every way through the CPU device: tiles and loops of each instruction set, one thread and more threads than cores.
std::vector<DeviceMaker> Makers() {
  std::vector<DeviceMaker> makers;
  for (const InstructionSet set : TestedInstructionSets()) {
    for (const int threads : {1, 3}) {
      makers.push_back({absl::StrCat(NameOf(set), "Threads", threads),
                        [=] { return CreateCpuDevice({.threads = threads, .instruction_set = set}); }});
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
