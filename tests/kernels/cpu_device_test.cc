#include "kernels/cpu/cpu_device.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/arithmetic/instruction_set.h"
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
INSTANTIATE_TEST_SUITE_P(Cpu, Conv2dTest, testing::ValuesIn(Makers()), DeviceMaker::Name);

TEST(CpuDevice, NamesTheThreadsAndTheLibraryIfAnOperationUsesIt) {
  const auto device = CreateCpuDevice({.threads = 1, .instruction_set = BestInstructionSet()}).value();
  EXPECT_EQ(device->name(), "cpu (1 thread)");
  EXPECT_EQ(CreateCpuDevice({.threads = 3}).value()->name(), "cpu (3 threads)");
  // Our tiles compute lenet5's first layer; oneDNN computes one of many channels where the CPU has AVX2.
  Conv2dSpec few{.batch = 2,
                 .in_height = 8,
                 .in_width = 8,
                 .in_channels = 1,
                 .out_channels = 6,
                 .kernel_height = 5,
                 .kernel_width = 5};
  ASSERT_TRUE(device->CreateOperation(few).ok());
  EXPECT_EQ(device->name(), "cpu (1 thread)");
  Conv2dSpec many = few;
  many.in_channels = many.out_channels = 64;
  ASSERT_TRUE(device->CreateOperation(many).ok());
  EXPECT_THAT(device->name(), BestInstructionSet() == InstructionSet::kBaseline
                                  ? testing::MatchesRegex("cpu \\(1 thread\\)")
                                  : testing::MatchesRegex("cpu \\(oneDNN 2\\.[0-9.]+, 1 thread\\)"));
}

}  // namespace
}  // namespace starring
