// Runs on emulated GPUs, which count the bytes that are allocated.
#include "worker/step/gpu_memory.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "common/job/bucket_map.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cuda_emulation/emulated_gpu.h"
#include "worker/data/dataset.h"
#include "worker/exchange/local/local_exchange.h"

namespace starring {
namespace {

using ::testing::MatchesRegex;

constexpr OptimizerConfig kOptimizer{.kind = OptimizerKind::kAdamW};

class GpuMemoryTest : public testing::Test {
 protected:
  ~GpuMemoryTest() override { cuda_emulation::Gpu() = {}; }

  // The evaluation's batch has 64 samples: `batch` may be larger or smaller.
  static NetworkOptions ShapeOf(int64_t batch) {
    return {.height = 28, .width = 28, .channels = 1, .outputs = 10, .batch_max = batch, .evaluation_batch_max = 64};
  }
  static TrainAndTest MakeData() {
    return LoadDataset({.name = "synthetic", .synthetic_train_count = 4000, .synthetic_test_count = 1000}).value();
  }
  static CudaTrainingStepOptions StepOf(int64_t batch, std::optional<OptimizerConfig> optimizer = kOptimizer) {
    static const TrainAndTest* const data = new TrainAndTest(MakeData());
    return {.optimizer = optimizer, .data = data, .batch_max = batch, .evaluation_batch_max = 64};
  }
  static GpuMemoryNeed NeedOf(int64_t batch, std::optional<OptimizerConfig> optimizer = kOptimizer) {
    return GpuMemoryNeedOf(LayerFile::Load("lenet5").value(), ShapeOf(batch), StepOf(batch, optimizer)).value();
  }
};

TEST_F(GpuMemoryTest, WhatIsNeededIsWhatATrainingAllocates) {
  struct Case {
    int64_t batch;
    bool data_on_gpu;
    Element element = Element::kFloat32;
  };
  for (const auto& [batch, data_on_gpu, element] :
       {Case{300, false}, Case{5, false}, Case{5, true}, Case{300, false, Element::kBfloat16}}) {
    const bool is_bf16 = element == Element::kBfloat16;
    cuda_emulation::Gpu() = {.cudnn_version = 91900};
    const auto device = CreateCudaDevice({.math = is_bf16 ? CudaMath::kBf16 : CudaMath::kFp32,
                                          .convolutions = is_bf16 ? CudaConvolutions::kCudnn : CudaConvolutions::kOwn})
                            .value();
    NetworkOptions shape = ShapeOf(batch);
    shape.element = element;
    const int64_t before_bytes = cuda_emulation::DeviceBytes() - device->operations_bytes();
    const auto network = Network::Create(LayerFile::Load("lenet5").value(), shape, device.get()).value();
    const int64_t elements = network->layout().element_count();
    const auto buckets = BucketMap::Create({.element_count = elements, .bucket_bytes = 1, .world_size = 1}).value();
    const auto exchange = CreateLocalExchange();
    CudaTrainingStepOptions options = StepOf(batch);
    options.data_on_gpu = data_on_gpu;
    options.element = element;
    const GpuMemoryNeed need = GpuMemoryNeedOf(LayerFile::Load("lenet5").value(), shape, options).value();
    options.device = device.get();
    const auto step =
        CreateCudaTrainingStep({.network = network.get(), .exchange = exchange.get(), .buckets = &buckets}, options)
            .value();
    const int64_t taken_bytes = cuda_emulation::DeviceBytes() - device->operations_bytes() - before_bytes;
    // Every allocation is rounded up to 256 bytes.
    EXPECT_GE(taken_bytes, need.total_bytes());
    EXPECT_LE(taken_bytes, need.total_bytes() + 40 * 256);
    EXPECT_EQ(need.data_bytes, data_on_gpu ? 5000 * 786 : 0);
  }
}

TEST_F(GpuMemoryTest, WithSeveralWorkersTheOptimizerIsTheExchanges) {
  const GpuMemoryNeed one = NeedOf(64), several = NeedOf(64, std::nullopt);
  EXPECT_EQ(one.optimizer_bytes, one.parameters_bytes);  // two vectors each
  EXPECT_EQ(several.optimizer_bytes, 0);
  EXPECT_EQ(several.parameters_bytes, one.parameters_bytes);
}

TEST_F(GpuMemoryTest, AnExchangeInGpuMemoryCounts) {
  const auto device = CreateCudaDevice({}).value();
  const GpuMemoryNeed without = NeedOf(64, std::nullopt);
  int64_t elements = 0;
  CudaTrainingStepOptions step = StepOf(64, std::nullopt);
  ExchangeBytes exchange = {.of = [&](int64_t element_count) {
    elements = element_count;
    return int64_t{6} << 20;
  }};
  const auto plan = [&] {
    return PlanGpuMemory(LayerFile::Load("lenet5").value(), ShapeOf(64), DataOnGpu::kOff, *device, &step, exchange);
  };
  EXPECT_EQ(plan().value().total_bytes(), without.total_bytes() + (int64_t{6} << 20));
  EXPECT_EQ(elements * 8, without.parameters_bytes);  // parameters and gradients
  cuda_emulation::Gpu().memory_bytes = cuda_emulation::DeviceBytes() + without.total_bytes();
  // Without room for the exchange the ranks agree on another way.
  EXPECT_TRUE(plan().ok()) << plan().status();
  exchange.has_other_way = false;
  EXPECT_FALSE(plan().ok());
  cuda_emulation::Gpu().memory_bytes += int64_t{6} << 20;
  EXPECT_TRUE(plan().ok()) << plan().status();
  --cuda_emulation::Gpu().memory_bytes;
  EXPECT_THAT(std::string(plan().status().message()),
              MatchesRegex(".*, exchange 6.0 MiB\\), .* are free: give a smaller --global_batch.*"));
}

TEST_F(GpuMemoryTest, WhatDoesNotFitIsRefusedWithNumbersAndTheWayOut) {
  const auto device = CreateCudaDevice({}).value();
  const GpuMemoryNeed need = NeedOf(4096);
  cuda_emulation::Gpu().memory_bytes = cuda_emulation::DeviceBytes() + need.total_bytes();
  EXPECT_TRUE(CheckGpuMemory(need, *device).ok());
  --cuda_emulation::Gpu().memory_bytes;
  const absl::Status status = CheckGpuMemory(need, *device);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              MatchesRegex("GPU 0 \\(emulated GPU\\) has too little memory: ([0-9.]+ MiB) are needed \\(activations "
                           "[0-9.]+ MiB, parameters and gradients 0.5 MiB, optimizer 0.5 MiB, batches [0-9.]+ MiB\\), "
                           "[0-9.]+ MiB of 2.0 GiB are free: give a smaller --global_batch.*--device=cpu"));
}

TEST_F(GpuMemoryTest, TheDataSetGoesToTheGpuWhereItFits) {
  const auto device = CreateCudaDevice({}).value();
  const LayerFile file = LayerFile::Load("lenet5").value();
  CudaTrainingStepOptions step = StepOf(64);
  const auto plan = [&](DataOnGpu data_on_gpu) {
    return PlanGpuMemory(file, ShapeOf(64), data_on_gpu, *device, &step);
  };
  ASSERT_TRUE(plan(DataOnGpu::kOff).ok());
  EXPECT_FALSE(step.data_on_gpu);
  const GpuMemoryNeed on = plan(DataOnGpu::kOn).value();
  EXPECT_TRUE(step.data_on_gpu);
  const int64_t taken_bytes = cuda_emulation::DeviceBytes();
  const int64_t rest_bytes = on.total_bytes() - on.data_bytes;
  cuda_emulation::Gpu().memory_bytes = taken_bytes + rest_bytes + 2 * on.data_bytes;
  EXPECT_EQ(plan(DataOnGpu::kAuto).value().data_bytes, on.data_bytes);
  EXPECT_TRUE(step.data_on_gpu);
  cuda_emulation::Gpu().memory_bytes -= 2;
  EXPECT_EQ(plan(DataOnGpu::kAuto).value().data_bytes, 0);
  EXPECT_FALSE(step.data_on_gpu);
  EXPECT_TRUE(plan(DataOnGpu::kOn).ok());
  cuda_emulation::Gpu().memory_bytes = taken_bytes + on.total_bytes() - 1;
  const absl::Status status = plan(DataOnGpu::kOn).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              MatchesRegex(".*, data set 3.7 MiB\\), .* are free: give --data_on_gpu=off, a smaller --global_batch.*"));
}

TEST_F(GpuMemoryTest, IsDescribedForAPerson) {
  const auto device = CreateCudaDevice({}).value();
  const GpuMemoryNeed need{
      .activations_bytes = int64_t{5} << 28, .parameters_bytes = 1 << 20, .batches_bytes = 3 << 19};
  EXPECT_EQ(DescribeGpuMemory(need, *device),
            "GPU memory: 1.3 GiB of 2.0 GiB (activations 1.2 GiB, parameters and gradients 1.0 MiB, batches 1.5 MiB, "
            "operations 32.0 MiB)");
}

}  // namespace
}  // namespace starring
