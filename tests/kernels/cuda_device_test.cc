// The suites of devices on a real GPU. Without one, or in a build without CUDA, one test says why it skips them.
#include "kernels/cuda/cuda_device.h"

#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/cuda_device_suite.h"
#include "tests/kernels/device_test_suite.h"

namespace starring {
namespace {

bool HasGpu() { return FindCudaDevices().ok(); }

bool HasCudnn() { return CreateCudaDevice({.convolutions = CudaConvolutions::kCudnn}).ok(); }

// Without cuDNN, in tf32 and bf16, every convolution is computed by columns, some in chunks. Factors are rounded to 11
// and 8 bits, where fp32 has 24, but sums are not, so the tolerances are coarser by less than that.
std::vector<DeviceMaker> Makers() {
  if (!HasGpu()) return {};
  const auto make = [](CudaMath math, int64_t columns_bytes_max, CudaConvolutions convolutions = {}) {
    return [=]() -> absl::StatusOr<std::unique_ptr<Device>> {
      return CreateCudaDevice({.math = math, .convolutions = convolutions, .columns_bytes_max = columns_bytes_max});
    };
  };
  const int64_t whole = CudaDeviceOptions().columns_bytes_max;
  std::vector<DeviceMaker> makers = {{"Fp32", make(CudaMath::kFp32, whole)},
                                     {"Fp32InChunks", make(CudaMath::kFp32, 1)},
                                     {"Tf32", make(CudaMath::kTf32, whole), 250},
                                     {"Tf32InChunks", make(CudaMath::kTf32, 1), 250},
                                     {"Bf16", make(CudaMath::kBf16, whole), 2000}};
  if (!HasCudnn()) return makers;
  constexpr CudaConvolutions kCudnn = CudaConvolutions::kCudnn;
  makers.push_back({"Fp32Cudnn", make(CudaMath::kFp32, whole, kCudnn)});
  makers.push_back({"Tf32Cudnn", make(CudaMath::kTf32, whole, kCudnn), 250});
  return makers;
}
std::vector<CudaMath> Maths() { return HasGpu() ? std::vector<CudaMath>{CudaMath::kFp32} : std::vector<CudaMath>{}; }

INSTANTIATE_TEST_SUITE_P(Cuda, DeviceTest, testing::ValuesIn(Makers()), DeviceMaker::Name);
INSTANTIATE_TEST_SUITE_P(Cuda, Conv2dTest, testing::ValuesIn(Makers()), DeviceMaker::Name);
INSTANTIATE_TEST_SUITE_P(Cuda, CudaDeviceTest, testing::ValuesIn(Maths()));

TEST(CudaDevice, IsTestedOnARealGpu) {
  const auto devices = FindCudaDevices();
  if (!devices.ok()) GTEST_SKIP() << "no kernel ran on a real GPU: " << devices.status();
  EXPECT_FALSE(devices->empty());
}

TEST(CudaDevice, IsTestedWithCudnn) {
  if (!HasGpu()) GTEST_SKIP() << "no GPU: " << FindCudaDevices().status();
  const auto device = CreateCudaDevice({.convolutions = CudaConvolutions::kCudnn});
  if (!device.ok()) GTEST_SKIP() << "no convolution ran by cuDNN: " << device.status();
  RecordProperty("cudnn", (*device)->cudnn_version());
}

// The program has started, even without a driver, and says what is missing instead of crashing.
TEST(CudaDevice, CreateNeverCrashes) {
  const auto device = CreateCudaDevice({});
  EXPECT_TRUE(device.ok() || !device.status().message().empty());
}

// With coarser factors a product stays within their rounding, and differs from fp32's: the option has an effect.
TEST(CudaDevice, MathRoundsTheFactorsOnly) {
  if (!HasGpu()) GTEST_SKIP() << "no GPU: " << FindCudaDevices().status();
  const DenseSpec spec = {.batch = 256, .in = 1024, .out = 256};
  const std::vector<float> x_host = RandomFloats(1, 256 * 1024), weight_host = RandomFloats(2, 256 * 1024);
  std::vector<std::vector<float>> results;
  for (const CudaMath math : {CudaMath::kFp32, CudaMath::kTf32, CudaMath::kBf16}) {
    auto device = CreateCudaDevice({.math = math}).value();
    auto dense = device->CreateOperation(spec).value();
    DeviceTensor x(device.get(), x_host), weight(device.get(), weight_host), bias(device.get(), RandomFloats(3, 256));
    DeviceTensor y(device.get(), 256 * 256);
    dense->Forward(x.data(), weight.data(), bias.data(), y.data());
    results.push_back(y.Host());
  }
  EXPECT_TRUE(Near(results[1], ToDouble(results[0]), 5e-3));
  EXPECT_TRUE(Near(results[2], ToDouble(results[0]), 4e-2));
  EXPECT_NE(results[1], results[0]);
  EXPECT_NE(results[2], results[0]);
  // cuBLASLt may round to bf16, but may also use a tf32 kernel.
  RecordProperty("bf16_is_tf32", results[2] == results[1] ? "yes" : "no");
}

}  // namespace
}  // namespace starring
