// The whole suite of devices on the emulated GPU: the kernels' own source, without a GPU. What this cannot find is said
// in tests/cuda_emulation/include/cuda_runtime.h.
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cuda_device.h"
#include "tests/cuda_emulation/emulated_gpu.h"
#include "tests/kernels/cuda_device_suite.h"
#include "tests/kernels/device_test_suite.h"

namespace starring {
namespace {

using cuda_emulation::EmulatedGpu;
using cuda_emulation::Gpu;

// cuBLASLt with epilogues, and one that leaves bias and ReLU to us; columns whole, and in chunks of four images. The
// emulation rounds no factors: with tf32 every convolution goes by columns, narrow ones too, to the same tolerance.
absl::StatusOr<std::unique_ptr<Device>> CreateWhole() {
  Gpu() = {};
  return CreateCudaDevice({.ordinal = 1});
}
absl::StatusOr<std::unique_ptr<Device>> CreateInChunksWithoutEpilogues() {
  Gpu() = {.has_epilogues = false};
  return CreateCudaDevice({.math = CudaMath::kTf32, .columns_bytes_max = 1});
}

INSTANTIATE_TEST_SUITE_P(EmulatedCuda, DeviceTest,
                         testing::Values(DeviceMaker{"Whole", CreateWhole},
                                         DeviceMaker{"InChunksWithoutEpilogues", CreateInChunksWithoutEpilogues}),
                         DeviceMaker::Name);

INSTANTIATE_TEST_SUITE_P(EmulatedCuda, CudaDeviceTest, testing::Values(CudaMath::kFp32, CudaMath::kTf32));

class CreateCudaDeviceTest : public testing::Test {
 protected:
  ~CreateCudaDeviceTest() override { Gpu() = {}; }
  static void Refuses(const EmulatedGpu& gpu, int ordinal, absl::StatusCode code, const char* words) {
    Gpu() = gpu;
    const absl::Status status = CreateCudaDevice({.ordinal = ordinal}).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(words));
  }
};

TEST_F(CreateCudaDeviceTest, SaysWhatTheMachineLacksWithNumbers) {
  Refuses({.driver_version = 0}, 0, absl::StatusCode::kNotFound, "no CUDA driver (libcuda.so.1): this build needs");
  Refuses({.driver_version = 12040}, 0, absl::StatusCode::kUnavailable,
          "the driver is one of CUDA 12.4, this build needs 13.0");
  Refuses({.count = 0}, 0, absl::StatusCode::kNotFound, "shows no GPU");
  Refuses({.count = 2}, 2, absl::StatusCode::kInvalidArgument, "GPU 2 does not exist: the driver shows 2, from 0");
  Refuses({.count = 2}, -1, absl::StatusCode::kInvalidArgument, "GPU -1 does not exist");
  Refuses({.compute_major = 7}, 0, absl::StatusCode::kFailedPrecondition,
          "compute capability 7.0: at least 8.0 is needed");
  Refuses({.memory_bytes = 1 << 20}, 0, absl::StatusCode::kResourceExhausted,
          "no GPU memory for a buffer of 33554432 bytes: 1048576 of 1048576 are free");
}

TEST_F(CreateCudaDeviceTest, FindsEveryGpu) {
  const auto devices = FindCudaDevices();
  ASSERT_TRUE(devices.ok()) << devices.status();
  ASSERT_EQ(devices->size(), 2u);
  EXPECT_EQ((*devices)[1].ordinal, 1);
  EXPECT_EQ((*devices)[1].name, "emulated GPU");
  EXPECT_EQ((*devices)[1].compute_major, 9);
  EXPECT_EQ((*devices)[1].memory_bytes, int64_t{2} << 30);
}

TEST_F(CreateCudaDeviceTest, GivesAllItsMemoryBack) {
  const int64_t before_bytes = cuda_emulation::DeviceBytes();
  {
    auto device = CreateCudaDevice({}).value();
    auto norm = device->CreateBatchNorm({.batch = 2, .height = 3, .width = 4, .channels = 5});
    EXPECT_TRUE(norm.ok());
    EXPECT_GT(cuda_emulation::DeviceBytes(), before_bytes);
  }
  EXPECT_EQ(cuda_emulation::DeviceBytes(), before_bytes);
}

// Every reason for columns, just beyond the bound of what needs none (kernels/cuda/narrow_convolution.h).
TEST_F(CreateCudaDeviceTest, OnlyNarrowConvolutionsInFp32MakeNoColumns) {
  const auto makes_columns = [](const Conv2dSpec& spec, CudaMath math) {
    auto device = CreateCudaDevice({.math = math}).value();
    const int64_t before_bytes = cuda_emulation::DeviceBytes();
    EXPECT_TRUE(device->CreateConv2d(spec).ok());
    const int64_t columns =
        spec.batch * spec.out_height() * spec.out_width() * spec.kernel_height * spec.kernel_width * spec.in_channels;
    return cuda_emulation::DeviceBytes() - before_bytes >= static_cast<int64_t>(sizeof(float)) * columns;
  };
  const Conv2dSpec narrow = {.batch = 2,
                             .in_height = 20,
                             .in_width = 20,
                             .in_channels = 64,
                             .out_channels = 64,
                             .kernel_height = 2,
                             .kernel_width = 4};
  EXPECT_FALSE(makes_columns(narrow, CudaMath::kFp32));
  EXPECT_TRUE(makes_columns(narrow, CudaMath::kTf32));
  EXPECT_TRUE(makes_columns(narrow, CudaMath::kBf16));
  Conv2dSpec wide = narrow;
  wide.out_channels = 65;
  EXPECT_TRUE(makes_columns(wide, CudaMath::kFp32));
  wide = narrow;
  wide.in_channels = 65;
  wide.kernel_width = 3;
  EXPECT_TRUE(makes_columns(wide, CudaMath::kFp32));
  wide = narrow;
  wide.kernel_height = wide.kernel_width = 3;
  EXPECT_TRUE(makes_columns(wide, CudaMath::kFp32));
}

// An operation whose temporary memory does not fit is refused when it is created, not in a step.
TEST_F(CreateCudaDeviceTest, OperationsThatDoNotFitAreRefusedWithNumbers) {
  Gpu() = {.memory_bytes = int64_t{40} << 20};
  auto device = CreateCudaDevice({}).value();
  const absl::Status status = device
                                  ->CreateConv2d({.batch = 4,
                                                  .in_height = 100,
                                                  .in_width = 100,
                                                  .in_channels = 16,
                                                  .out_channels = 65,
                                                  .kernel_height = 5,
                                                  .kernel_width = 5})
                                  .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("58982400 bytes"));
  const absl::Status too_many = device
                                    ->CreateConv2d({.batch = 4,
                                                    .in_height = 2000,
                                                    .in_width = 2000,
                                                    .in_channels = 64,
                                                    .out_channels = 1,
                                                    .kernel_height = 9,
                                                    .kernel_width = 9})
                                    .status();
  EXPECT_EQ(too_many.code(), absl::StatusCode::kInvalidArgument) << too_many;
  EXPECT_THAT(std::string(too_many.message()), testing::HasSubstr("columns of 4 images"));
}

}  // namespace
}  // namespace starring
