#include "kernels/cpu/cpu_device.h"

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/device_test_suite.h"

namespace starring {
namespace {

INSTANTIATE_TEST_SUITE_P(Cpu, DeviceTest,
                         testing::Values(DeviceMaker{"OneThread", [] { return CreateCpuDevice(1); }},
                                         DeviceMaker{"ThreeThreads", [] { return CreateCpuDevice(3); }}),
                         DeviceMaker::Name);

TEST(CpuDevice, NamesTheLibraryAndTheThreads) {
  EXPECT_THAT(CreateCpuDevice(1).value()->name(), testing::MatchesRegex("cpu \\(oneDNN 2\\.[0-9.]+, 1 thread\\)"));
  EXPECT_THAT(CreateCpuDevice(3).value()->name(), testing::EndsWith(", 3 threads)"));
}

}  // namespace
}  // namespace starring
