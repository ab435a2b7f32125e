// The optimizer of a job with one worker, on that worker's GPU: the state vectors, and the update that ends a step.
//
// With one worker no gradient has to leave the GPU, so the training step applies the optimizer itself, inside the graph
// that it launches, and its exchange gets no bucket. Only checkpoints bring the state to the host.
//
// Thread safety: one thread, the device's.
#ifndef STARRING_WORKER_STEP_CUDA_LOCAL_OPTIMIZER_H_
#define STARRING_WORKER_STEP_CUDA_LOCAL_OPTIMIZER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/arithmetic/optimizer.h"
#include "common/job/job_spec.h"
#include "kernels/cuda/cuda_device.h"

namespace starring {

class CudaLocalOptimizer {
 public:
  // Bytes of GPU memory that Create allocates.
  static int64_t StateBytes(const OptimizerConfig& optimizer, int64_t element_count);
  // `device` outlives the optimizer. State starts at zero. ResourceExhausted, with the number of bytes, if the GPU has
  // too little memory.
  static absl::StatusOr<std::unique_ptr<CudaLocalOptimizer>> Create(CudaDevice* device,
                                                                    const OptimizerConfig& optimizer,
                                                                    int64_t element_count);

  // Takes the job's schedule and copies job.optimizer_state, if it has any, to the GPU; the copy is complete on return.
  // REQUIRES: job.optimizer is the one given to Create.
  absl::Status Start(const JobSpec& job);

  // The factors of the update of `step`, to be bound as step values before the graph with Apply is launched. After
  // Start.
  CudaOptimizerScalars ScalarsOf(int64_t step) const;

  // Enqueues one update of the whole parameter vector with the factors of the bound step values. Both spans are device
  // memory. May be captured.
  void Apply(std::span<const float> gradients, std::span<float> parameters);

  // Copies the state vectors to the host, state[i] taking vector i. Waits for everything that was enqueued before.
  absl::Status CopyStateOut(std::span<const std::span<float>> state) const;

 private:
  CudaLocalOptimizer(CudaDevice* device, const OptimizerConfig& optimizer) : device_(*device), optimizer_(optimizer) {}

  CudaDevice& device_;
  const OptimizerConfig optimizer_;
  LearningRateSchedule schedule_;
  std::vector<std::unique_ptr<DeviceBuffer>> buffers_;  // of state_, one each
  std::vector<std::span<float>> state_;                 // each as long as the parameter vector
};

}  // namespace starring

#endif  // STARRING_WORKER_STEP_CUDA_LOCAL_OPTIMIZER_H_
