// Compares with the optimizer of the CPU, on an emulated GPU whose streams run as late as they may.
#include "worker/step/cuda_local_optimizer.h"

#include <memory>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cuda_emulation/emulated_gpu.h"

namespace starring {
namespace {

constexpr int64_t kCount = 1003;

std::vector<float> Ramp(float scale) {
  std::vector<float> values(kCount);
  for (int64_t i = 0; i < kCount; ++i) values[i] = scale * static_cast<float>(i % 37 - 18);
  return values;
}

class CudaLocalOptimizerTest : public testing::TestWithParam<OptimizerKind> {
 protected:
  CudaLocalOptimizerTest() {
    cuda_emulation::Gpu().late = true;
    device_ = CreateCudaDevice({}).value();
    values_ = device_->Allocate(sizeof(CudaStepValues)).value();
    device_->BindStepValues(static_cast<const CudaStepValues*>(values_->data()));
  }
  ~CudaLocalOptimizerTest() override {
    device_->BindStepValues(nullptr);
    values_.reset();
    device_.reset();
    cuda_emulation::Gpu() = {};
  }

  std::unique_ptr<DeviceBuffer> OnDevice(const std::vector<float>& values) {
    auto buffer = device_->Allocate(kCount * 4).value();
    device_->CopyToDevice(values.data(), buffer->data(), kCount * 4);
    EXPECT_TRUE(device_->Synchronize().ok());
    return buffer;
  }

  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<DeviceBuffer> values_;
};

INSTANTIATE_TEST_SUITE_P(Kinds, CudaLocalOptimizerTest, testing::Values(OptimizerKind::kSgd, OptimizerKind::kAdamW));

TEST_P(CudaLocalOptimizerTest, GoesOnFromACheckpointsStateToTheBitsOfTheCpu) {
  JobSpec job{.first_step = 7, .optimizer = {.kind = GetParam(), .momentum = 0.9}};
  job.schedule.base = 0.125;
  const int vector_count = StateVectorCount(job.optimizer);
  std::vector<std::vector<float>> state(vector_count, Ramp(0.0625f));
  for (std::vector<float>& vector : state) {
    for (float& value : vector) value *= value;  // AdamW's second vector is never negative
  }
  auto start = std::make_unique<std::vector<std::vector<float>>>(state);
  job.optimizer_state.assign(start->begin(), start->end());

  const auto optimizer = CudaLocalOptimizer::Create(device_.get(), job.optimizer, kCount).value();
  ASSERT_TRUE(optimizer->Start(job).ok());
  start.reset();  // Start has copied it
  std::vector<float> parameters = Ramp(0.5f);
  const std::vector<float> gradient = Ramp(0.25f);
  const auto on_device = OnDevice(parameters), gradient_on_device = OnDevice(gradient);
  const std::vector<std::span<float>> spans(state.begin(), state.end());
  for (int64_t step = job.first_step; step < job.first_step + 3; ++step) {
    const CudaStepValues values{.step = step, .optimizer = optimizer->ScalarsOf(step)};
    device_->CopyToDevice(&values, values_->data(), sizeof(values));
    optimizer->Apply({gradient_on_device->floats(), kCount}, {on_device->floats(), kCount});
    ASSERT_TRUE(device_->Synchronize().ok());
    ApplyOptimizer(job.optimizer, {.learning_rate = 0.125f,
                                   .update = step + 1,
                                   .gradient = gradient,
                                   .parameters_in = parameters,
                                   .parameters_out = parameters,
                                   .state = spans});
  }
  std::vector<std::vector<float>> state_out(vector_count, std::vector<float>(kCount));
  const std::vector<std::span<float>> out_spans(state_out.begin(), state_out.end());
  ASSERT_TRUE(optimizer->CopyStateOut(out_spans).ok());
  EXPECT_EQ(state_out, state);
  std::vector<float> got(kCount);
  device_->CopyToHost(on_device->data(), got.data(), kCount * 4);
  ASSERT_TRUE(device_->Synchronize().ok());
  EXPECT_EQ(got, parameters);
}

TEST_P(CudaLocalOptimizerTest, AllocatesWhatItSays) {
  const OptimizerConfig config{.kind = GetParam(), .momentum = 0.9};
  const int64_t before_bytes = cuda_emulation::DeviceBytes();
  const auto optimizer = CudaLocalOptimizer::Create(device_.get(), config, kCount).value();
  const int64_t taken_bytes = cuda_emulation::DeviceBytes() - before_bytes;
  const int64_t said_bytes = CudaLocalOptimizer::StateBytes(config, kCount);
  EXPECT_EQ(said_bytes, StateVectorCount(config) * kCount * 4);
  EXPECT_GE(taken_bytes, said_bytes);
  EXPECT_LT(taken_bytes, said_bytes + 256 * StateVectorCount(config));  // every allocation is rounded up
}

}  // namespace
}  // namespace starring
