#include "worker/step/cuda_local_optimizer.h"

#include <utility>

#include "absl/memory/memory.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace starring {

int64_t CudaLocalOptimizer::StateBytes(const OptimizerConfig& optimizer, int64_t element_count) {
  return StateVectorCount(optimizer) * element_count * kFloatBytes;
}

absl::StatusOr<std::unique_ptr<CudaLocalOptimizer>> CudaLocalOptimizer::Create(CudaDevice* device,
                                                                               const OptimizerConfig& optimizer,
                                                                               int64_t element_count) {
  CHECK_EQ(optimizer.clip_norm, 0) << "the norm is computed in host memory";
  auto local = absl::WrapUnique(new CudaLocalOptimizer(device, optimizer));
  // Device memory is zeroed when it is allocated, and zeros are the state of a run that begins.
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
  // The job has a state only if a run is resumed; otherwise the zeros of Create remain.
  for (size_t i = 0; i < job.optimizer_state.size(); ++i) {
    CHECK_EQ(job.optimizer_state[i].size(), state_[i].size());
    device_.CopyToDevice(job.optimizer_state[i].data(), state_[i].data(),
                         static_cast<int64_t>(job.optimizer_state[i].size_bytes()));
  }
  // The spans of job.optimizer_state are the caller's and may end when this returns.
  return device_.Synchronize();
}

CudaOptimizerScalars CudaLocalOptimizer::ScalarsOf(int64_t step) const {
  // Steps count from 0 and updates from 1, on which AdamW's corrections of its means depend. The learning rate is
  // computed here, without libm, as every other owner computes it.
  return MakeCudaOptimizerScalars(optimizer_, LearningRateAt(schedule_, step), step + 1);
}

void CudaLocalOptimizer::Apply(std::span<const float> gradients, std::span<float> parameters) {
  // The update is in place. The arguments have no learning rate: the kernel reads it from the bound step values, which
  // arrive with the batch, because a captured graph would repeat the rate of its capture in every step.
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
