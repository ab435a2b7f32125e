// What a training takes of a GPU's memory: known before it takes any, so that one that does not fit is refused with
// numbers, and not when half of the memory is filled.
//
// Thread safety: the device's thread.
#ifndef STARRING_WORKER_STEP_GPU_MEMORY_H_
#define STARRING_WORKER_STEP_GPU_MEMORY_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_device.h"
#include "worker/data/dataset.h"
#include "worker/model/layer_file.h"
#include "worker/model/network.h"
#include "worker/step/cuda_training_step.h"

namespace starring {

struct GpuMemoryNeed {
  int64_t activations_bytes = 0;  // and their gradients, of training and evaluation
  int64_t parameters_bytes = 0;   // and gradients
  int64_t optimizer_bytes = 0;
  int64_t batches_bytes = 0;  // on their way, and normalised
  int64_t data_bytes = 0;     // of the data set, if it is on the GPU

  int64_t total_bytes() const {
    return activations_bytes + parameters_bytes + optimizer_bytes + batches_bytes + data_bytes;
  }
};

// Fails as Network::Create does.
// Not counted: what operations allocate when they are made (CudaDevice::operations_bytes), and what a CUDA-aware ring
// takes, which goes by way of the host where there is too little.
absl::StatusOr<GpuMemoryNeed> GpuMemoryNeedOf(const LayerFile& file, const NetworkOptions& network,
                                              const CudaTrainingStepOptions& step);

// InvalidArgument, with what is needed for what, what is free, and the way out, where more is needed than is free.
absl::Status CheckGpuMemory(const GpuMemoryNeed& need, const CudaDevice& device);

// Both of these: the need of a training on `device`. Before, it decides whether the data set goes to the GPU and sets
// step->data_on_gpu: kAuto where it takes at most half of what all else leaves free.
absl::StatusOr<GpuMemoryNeed> PlanGpuMemory(const LayerFile& file, const NetworkOptions& network, DataOnGpu data_on_gpu,
                                            const CudaDevice& device, CudaTrainingStepOptions* step);

// For a person, when all of it is allocated: "GPU memory: 1.2 of 139.8 GiB (activations 1.0 GiB, ...)".
std::string DescribeGpuMemory(const GpuMemoryNeed& need, const CudaDevice& device);

}  // namespace starring

#endif  // STARRING_WORKER_STEP_GPU_MEMORY_H_
