// The whole suite of devices on the emulated GPU: the kernels' own source, without a GPU.
// tests/cuda_emulation/include/cuda_runtime.h says which errors this cannot find.
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_watch.h"
#include "tests/cuda_emulation/emulated_gpu.h"
#include "tests/kernels/cuda_device_suite.h"
#include "tests/kernels/device_test_suite.h"

namespace starring {
namespace {

using cuda_emulation::EmulatedGpu;
using cuda_emulation::Gpu;

// cuBLASLt with epilogues, and one that leaves bias and ReLU to us; columns whole, and in chunks of four images. With
// tf32 every convolution is computed by columns, narrow ones too. The emulation rounds no factors, so the tolerance is
// that of fp32.
absl::StatusOr<std::unique_ptr<Device>> CreateWhole() {
  Gpu() = {};
  return CreateCudaDevice({.ordinal = 1});
}
absl::StatusOr<std::unique_ptr<Device>> CreateInChunksWithoutEpilogues() {
  Gpu() = {.has_epilogues = false};
  return CreateCudaDevice({.math = CudaMath::kTf32, .columns_bytes_max = 1});
}
// cuDNN with fused biases and ReLUs, and a cuDNN that leaves them, and one shape of the suite, to us.
absl::StatusOr<std::unique_ptr<Device>> CreateWithCudnn() {
  Gpu() = {.cudnn_version = 91900};
  return CreateCudaDevice({.convolutions = CudaConvolutions::kCudnn});
}
absl::StatusOr<std::unique_ptr<Device>> CreateWithLesserCudnn() {
  Gpu() = {.cudnn_version = 91900, .cudnn_fuses = false, .cudnn_channels_refused = 17};
  return CreateCudaDevice({.math = CudaMath::kTf32, .convolutions = CudaConvolutions::kAuto});
}

std::vector<DeviceMaker> Makers() {
  return {{"Whole", CreateWhole}, {"InChunksWithoutEpilogues", CreateInChunksWithoutEpilogues}};
}
std::vector<DeviceMaker> Conv2dMakers() {
  std::vector<DeviceMaker> makers = Makers();
  makers.push_back({"Cudnn", CreateWithCudnn});
  makers.push_back({"LesserCudnn", CreateWithLesserCudnn});
  return makers;
}

INSTANTIATE_TEST_SUITE_P(EmulatedCuda, DeviceTest, testing::ValuesIn(Makers()), DeviceMaker::Name);
INSTANTIATE_TEST_SUITE_P(EmulatedCuda, Conv2dTest, testing::ValuesIn(Conv2dMakers()), DeviceMaker::Name);
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
          "the driver is one of CUDA 12.4, this build needs one of CUDA 13 (580 or newer)");
  Refuses({.driver_version = 12040}, 0, absl::StatusCode::kUnavailable, "build with a toolkit as old");
  Refuses({.count = 0}, 0, absl::StatusCode::kNotFound, "shows no GPU");
  Refuses({.count = 2}, 2, absl::StatusCode::kInvalidArgument, "GPU 2 does not exist: the driver shows 2, from 0");
  Refuses({.count = 2}, -1, absl::StatusCode::kInvalidArgument, "GPU -1 does not exist");
  Refuses({.compute_major = 7}, 0, absl::StatusCode::kFailedPrecondition,
          "compute capability 7.0: at least 8.0 is needed");
  Refuses({.memory_bytes = 1 << 20}, 0, absl::StatusCode::kResourceExhausted,
          "no GPU memory for a buffer of 33554432 bytes: 1048576 of 1048576 are free");
  Refuses({.fits_context = false}, 1, absl::StatusCode::kResourceExhausted,
          "GPU 1: of its 2147483648 bytes too few are free for a context of this process: nvidia-smi shows");
}

TEST_F(CreateCudaDeviceTest, FindsEveryGpu) {
  const auto devices = FindCudaDevices();
  ASSERT_TRUE(devices.ok()) << devices.status();
  ASSERT_EQ(devices->size(), 2u);
  EXPECT_EQ((*devices)[1].ordinal, 1);
  EXPECT_EQ((*devices)[1].name, "emulated GPU");
  EXPECT_EQ((*devices)[1].compute_major, 9);
  EXPECT_EQ((*devices)[1].memory_bytes, int64_t{2} << 30);
  EXPECT_EQ((*devices)[1].uuid.size(), 16u);
  EXPECT_NE((*devices)[0].uuid, (*devices)[1].uuid);
}

TEST_F(CreateCudaDeviceTest, GivesAllItsMemoryBack) {
  const int64_t before_bytes = cuda_emulation::DeviceBytes();
  Gpu() = {.cudnn_version = 91900};
  for (const CudaConvolutions convolutions : {CudaConvolutions::kOwn, CudaConvolutions::kCudnn}) {
    auto device = CreateCudaDevice({.convolutions = convolutions}).value();
    EXPECT_TRUE(device
                    ->CreateOperation(
                        Conv2dSpec{.batch = 1, .in_height = 2, .in_width = 2, .in_channels = 3, .out_channels = 4})
                    .ok());
    auto norm = device->CreateBatchNorm({.batch = 2, .height = 3, .width = 4, .channels = 5});
    EXPECT_TRUE(norm.ok());
    EXPECT_GT(cuda_emulation::DeviceBytes(), before_bytes);
  }
  EXPECT_EQ(cuda_emulation::DeviceBytes(), before_bytes);
}

TEST_F(CreateCudaDeviceTest, TakesCudnnWhereItMayAndCan) {
  const auto version = [](const EmulatedGpu& gpu, CudaConvolutions convolutions) {
    Gpu() = gpu;
    const auto device = CreateCudaDevice({.convolutions = convolutions});
    return device.ok() ? (*device)->cudnn_version() : device.status().ToString();
  };
  const EmulatedGpu none = {}, there = {.cudnn_version = 91900},
                    broken = {.cudnn_version = 91900, .cudnn_starts = false};
  for (const EmulatedGpu& gpu : {none, there, broken}) EXPECT_EQ(version(gpu, CudaConvolutions::kOwn), "");
  EXPECT_EQ(version(there, CudaConvolutions::kAuto), "9.19.0");
  EXPECT_EQ(version(there, CudaConvolutions::kCudnn), "9.19.0");
  EXPECT_EQ(version(none, CudaConvolutions::kAuto), "");
  EXPECT_EQ(version(broken, CudaConvolutions::kAuto), "");
  EXPECT_THAT(version(none, CudaConvolutions::kCudnn),
              testing::HasSubstr("UNAVAILABLE: GPU 0 (emulated GPU): cuDNN 9"));
  EXPECT_THAT(version(broken, CudaConvolutions::kCudnn),
              testing::HasSubstr("INTERNAL: GPU 0 (emulated GPU): cudnnCreate: CUDNN_STATUS_NOT_INITIALIZED"));
}

// The first configurations of every list are not deterministic, round too much, are compiled or want too much memory.
TEST_F(CreateCudaDeviceTest, EnginesOfCudnnAreChosenByWhatTheyPromise) {
  const auto engines = [](const EmulatedGpu& gpu, CudaMath math, Bias bias) {
    Gpu() = gpu;
    auto device = CreateCudaDevice({.math = math, .convolutions = CudaConvolutions::kCudnn}).value();
    EXPECT_TRUE(device
                    ->CreateOperation(Conv2dSpec{.batch = 2,
                                                 .in_height = 4,
                                                 .in_width = 5,
                                                 .in_channels = 3,
                                                 .out_channels = 8,
                                                 .kernel_height = 3,
                                                 .kernel_width = 3,
                                                 .bias = bias})
                    .ok());
    EXPECT_EQ(device->engines().size(), 1u);
    return device->engines().begin()->first + ": " + device->engines().begin()->second;
  };
  const std::string shape = "2 x 4 x 5 x 3 to 8, kernel 3 x 3, stride 1 x 1, padding 0 x 0";
  EmulatedGpu gpu = {.cudnn_version = 91900};
  EXPECT_EQ(engines(gpu, CudaMath::kFp32, Bias::kNone),
            shape + ": forward 7 (2=4 18=0), weight gradient 7 (2=4 18=0), input gradient 7 (2=4 18=0)");
  for (const CudaMath math : {CudaMath::kTf32, CudaMath::kBf16}) {
    EXPECT_EQ(engines(gpu, math, Bias::kAdded),
              shape + ", bias: forward 47 (2=5) fused, weight gradient 47 (2=5), input gradient 47 (2=5)");
  }
  gpu.cudnn_fuses = false;
  EXPECT_EQ(engines(gpu, CudaMath::kTf32, Bias::kAdded),
            shape + ", bias: forward 47 (2=5), weight gradient 47 (2=5), input gradient 47 (2=5)");
  gpu.cudnn_channels_refused = 3;
  EXPECT_EQ(engines(gpu, CudaMath::kFp32, Bias::kAdded), shape + ", bias: own");
}

// Each shape is just outside one bound of kernels/cuda/narrow_convolution.h, and so is computed by columns.
TEST_F(CreateCudaDeviceTest, OnlyNarrowConvolutionsInFp32MakeNoColumns) {
  const auto makes_columns = [](const Conv2dSpec& spec, CudaMath math) {
    auto device = CreateCudaDevice({.math = math}).value();
    const int64_t before_bytes = cuda_emulation::DeviceBytes();
    EXPECT_TRUE(device->CreateOperation(spec).ok());
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

// One of each kind of object that a device creates.
struct Belongings {
  explicit Belongings(CudaWatch* watch) {
    device = CreateCudaDevice({.watch = watch}).value();
    stream = device->CreateStream().value();
    event = device->CreateEvent().value();
    buffer = device->Allocate(64).value();
    pinned = device->AllocatePinned(64).value();
    registered = device->Pin(host.data(), 64, CudaDevice::PinFor::kReadAndWrite).value();
    math = device->CreateVectorMath().value();
    loss = device->CreateLoss({.batch = 2, .outputs = 3}).value();
    pool = device->CreateOperation(Pool2dSpec{.batch = 1, .in_height = 2, .in_width = 2, .channels = 1}).value();
    EXPECT_TRUE(device->BeginCapture().ok());
    device->Relu(buffer->floats(), buffer->floats(), 16);
    graph = device->EndCapture().value();
  }
  std::vector<char> host = std::vector<char>(64);
  std::unique_ptr<CudaDevice> device;
  std::unique_ptr<CudaStream> stream;
  std::unique_ptr<CudaEvent> event;
  std::unique_ptr<DeviceBuffer> buffer;
  std::unique_ptr<PinnedBuffer> pinned, registered;
  std::unique_ptr<CudaVectorMath> math;
  std::unique_ptr<Loss> loss;
  std::unique_ptr<LayerOperation> pool;
  std::unique_ptr<CudaGraph> graph;
};

// When a GPU hangs, no call that may wait for it returns. The watch must see each such call.
TEST_F(CreateCudaDeviceTest, EveryCallThatMayWaitForTheGpuIsWatched) {
  const std::vector<std::pair<const char*, std::function<void(Belongings&)>>> calls = {
      {"waiting for an event", [](Belongings& b) { (void)b.event->Wait(); }},
      {"waiting for the GPU", [](Belongings& b) { (void)b.device->Synchronize(); }},
      {"waiting for the GPU", [](Belongings& b) { (void)b.stream->Synchronize(); }},
      {"waiting for the GPU", [](Belongings& b) { (void)b.math->Synchronize(); }},
      {"waiting for the GPU", [](Belongings& b) { b.stream.reset(); }},
      {"waiting for the GPU", [](Belongings& b) { b.math.reset(); }},
      {"copying to the GPU", [](Belongings& b) { b.device->CopyToDevice(b.host.data(), b.buffer->data(), 64); }},
      {"copying from the GPU", [](Belongings& b) { b.device->CopyToHost(b.buffer->data(), b.host.data(), 64); }},
      {"copying from the GPU", [](Belongings& b) { b.math->CopyToHost(b.buffer->data(), b.host.data(), 64); }},
      {"waiting for the loss", [](Belongings& b) { b.loss->Result(); }},
      {"allocating GPU memory", [](Belongings& b) { (void)b.device->Allocate(64); }},
      {"allocating GPU memory",
       [](Belongings& b) { (void)b.device->CreateBatchNorm({.batch = 1, .height = 1, .width = 1, .channels = 1}); }},
      {"freeing GPU memory", [](Belongings& b) { b.buffer.reset(); }},
      {"freeing GPU memory", [](Belongings& b) { b.pool.reset(); }},
      {"allocating pinned memory", [](Belongings& b) { (void)b.device->AllocatePinned(64); }},
      {"freeing pinned memory", [](Belongings& b) { b.pinned.reset(); }},
      {"unpinning memory", [](Belongings& b) { b.registered.reset(); }},
      {"making a GPU current", [](Belongings& b) { (void)b.math->MakeCurrent(); }},
      {"launching a graph", [](Belongings& b) { (void)b.graph->Launch(); }},
      {"freeing a graph", [](Belongings& b) { b.graph.reset(); }},
  };
  for (const auto& [name, call] : calls) {
    SCOPED_TRACE(name);
    std::string seen;
    CudaWatch watch(
        {.deadline = std::chrono::milliseconds(5), .hangs = [&seen](const char* hanging, const std::string&) {
           // A call that is slow and does not hang is reported too.
           if (!cuda_emulation::Hangs()) return;
           seen = hanging;
           cuda_emulation::Hangs() = false;
         }});
    Belongings belongings(&watch);
    cuda_emulation::Hangs() = true;
    call(belongings);
    cuda_emulation::Hangs() = false;
    EXPECT_EQ(seen, name);
  }
}

// An operation whose temporary memory does not fit is refused when it is created, not in a step.
TEST_F(CreateCudaDeviceTest, OperationsThatDoNotFitAreRefusedWithNumbers) {
  Gpu() = {.memory_bytes = int64_t{40} << 20};
  auto device = CreateCudaDevice({}).value();
  const absl::Status status = device
                                  ->CreateOperation(Conv2dSpec{.batch = 4,
                                                               .in_height = 100,
                                                               .in_width = 100,
                                                               .in_channels = 16,
                                                               .out_channels = 65,
                                                               .kernel_height = 5,
                                                               .kernel_width = 5})
                                  .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  // Columns of 4 images: 96 x 96 places, each with a patch of 5 x 5 x 16 floats.
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("58982400 bytes"));
  const absl::Status too_many = device
                                    ->CreateOperation(Conv2dSpec{.batch = 4,
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
