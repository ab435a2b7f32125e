#include "kernels/cpu/cpu_device.h"

#include <cmath>
#include <cstdint>
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

// Y, dx, dgamma and dbeta of a group norm, of numbers that look random.
std::vector<std::vector<float>> GroupNormOn(Device* device, const GroupNormSpec& spec) {
  const int64_t count = spec.batch * spec.pixels * spec.channels;
  const auto numbers = [](int64_t size, float step) {
    std::vector<float> values(size);
    for (int64_t i = 0; i < size; ++i) values[i] = std::sin(step * static_cast<float>(i + 1));
    return values;
  };
  DeviceTensor x(device, numbers(count, 1.7f)), dy(device, numbers(count, 2.3f)), y(device, count), dx(device, count);
  DeviceTensor gamma(device, numbers(spec.channels, 0.9f)), beta(device, numbers(spec.channels, 1.1f));
  DeviceTensor dgamma(device, spec.channels), dbeta(device, spec.channels);
  const auto norm = device->CreateOperation(spec).value();
  norm->Forward(x.data(), gamma.data(), beta.data(), y.data());
  norm->Backward(x.data(), gamma.data(), y.data(), dy.data(), dx.data(), dgamma.data(), dbeta.data());
  return {y.Host(), dx.Host(), dgamma.Host(), dbeta.Host()};
}

TEST(CpuDevice, AGroupNormHasTheSameBitsOnEveryInstructionSetAndNumberOfThreads) {
  // Several chunks of pixels and a rest; whole vectors and a rest; ranges of channels for several threads.
  for (const GroupNormSpec& spec :
       std::vector<GroupNormSpec>{{.batch = 5, .pixels = 150, .channels = 12, .groups = 3},
                                  {.batch = 3, .pixels = 70, .channels = 40, .groups = 40},
                                  {.batch = 7, .pixels = 1, .channels = 3001, .groups = 1}}) {
    SCOPED_TRACE(absl::StrCat(spec.pixels, "x", spec.channels));
    const auto plain = CreateCpuDevice({.threads = 1, .instruction_set = InstructionSet::kBaseline}).value();
    const std::vector<std::vector<float>> want = GroupNormOn(plain.get(), spec);
    for (const DeviceMaker& maker : Makers()) {
      const auto device = maker.create().value();
      EXPECT_TRUE(GroupNormOn(device.get(), spec) == want) << maker.name;
    }
  }
}

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
