// The step on a device whose memory is the host's: gradients and parameters lie where the exchange has them.
#ifndef STARRING_WORKER_STEP_CPU_TRAINING_STEP_H_
#define STARRING_WORKER_STEP_CPU_TRAINING_STEP_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "worker/step/training_step.h"

namespace starring {

// ResourceExhausted with the number of bytes. `device` is the network's, and outlives the step.
absl::StatusOr<std::unique_ptr<TrainingStep>> CreateCpuTrainingStep(const TrainingStepParts& parts, Device* device);

}  // namespace starring

#endif  // STARRING_WORKER_STEP_CPU_TRAINING_STEP_H_
