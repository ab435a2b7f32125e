#include "worker/step/cuda_local_optimizer.h"

#include <utility>

#include "absl/memory/memory.h"
#include "common/check.h"
#include "common/status.h"

namespace starring {

int64_t CudaLocalOptimizer::StateBytes(const OptimizerConfig& optimizer, int64_t element_count) {
  return StateVectorCount(optimizer) * element_count * kFloatBytes;
}

absl::StatusOr<std::unique_ptr<CudaLocalOptimizer>> CudaLocalOptimizer::Create(CudaDevice* device,
                                                                               const OptimizerConfig& optimizer,
                                                                               int64_t element_count) {
  auto local = absl::WrapUnique(new CudaLocalOptimizer(device, optimizer));
  for (int i = 0; i < StateVectorCount(optimizer); ++i) {
    ASSIGN_OR_RETURN(auto buffer, device->Allocate(element_count * kFloatBytes), "optimizer state");
    local->state_.emplace_back(buffer->floats(), static_cast<size_t>(element_count));
    local->buffers_.push_back(std::move(buffer));
  }
  return local;
}

absl::Status CudaLocalOptimizer::Start(const JobSpec& job) {
  CHECK(job.optimizer == optimizer_);
  schedule_ = job.schedule;
  for (size_t i = 0; i < job.optimizer_state.size(); ++i) {
    CHECK_EQ(job.optimizer_state[i].size(), state_[i].size());
    device_.CopyToDevice(job.optimizer_state[i].data(), state_[i].data(),
                         static_cast<int64_t>(job.optimizer_state[i].size_bytes()));
  }
  // The spans of job.optimizer_state are the caller's and may end when this returns.
  return device_.Synchronize();
}

CudaOptimizerScalars CudaLocalOptimizer::ScalarsOf(int64_t step) const {
  return MakeCudaOptimizerScalars(optimizer_, LearningRateAt(schedule_, step), step + 1);
}

void CudaLocalOptimizer::Apply(std::span<const float> gradients, std::span<float> parameters) {
  device_.ApplyOptimizer(
      optimizer_, {.gradient = gradients, .parameters_in = parameters, .parameters_out = parameters, .state = state_});
}

absl::Status CudaLocalOptimizer::CopyStateOut(std::span<const std::span<float>> state) const {
  CHECK_EQ(state.size(), state_.size());
  for (size_t i = 0; i < state.size(); ++i) {
    CHECK_EQ(state[i].size(), state_[i].size());
    device_.CopyToHost(state_[i].data(), state[i].data(), static_cast<int64_t>(state[i].size_bytes()));
  }
  return device_.Synchronize();
}

}  // namespace starring
