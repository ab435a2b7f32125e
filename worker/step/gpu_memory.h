// The GPU memory that a training needs, computed before any is allocated, so that a training that does not fit is
// refused with numbers, and not when half of the memory is filled.
//
// Thread safety: the device's thread.
#ifndef STARRING_WORKER_STEP_GPU_MEMORY_H_
#define STARRING_WORKER_STEP_GPU_MEMORY_H_

#include <cstdint>
#include <functional>
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
  int64_t activations_bytes = 0;  // activations and their gradients, of training and evaluation
  int64_t parameters_bytes = 0;   // parameters and their gradients
  int64_t optimizer_bytes = 0;
  int64_t batches_bytes = 0;  // batches in slots, and the normalised one
  int64_t data_bytes = 0;     // the data set, if it is on the GPU
  int64_t exchange_bytes = 0;
  bool exchange_has_other_way = true;  // without that memory

  int64_t total_bytes() const {
    return activations_bytes + parameters_bytes + optimizer_bytes + batches_bytes + data_bytes + exchange_bytes;
  }
};

// The GPU memory that an exchange takes.
struct ExchangeBytes {
  std::function<int64_t(int64_t element_count)> of;  // null: none
  bool has_other_way = true;                         // with too little memory the ranks exchange in another way
};

// The memory that a training takes with these options. Fails as Network::Create does.
// Not counted: the memory that operations allocate when they are made (CudaDevice::operations_bytes).
absl::StatusOr<GpuMemoryNeed> GpuMemoryNeedOf(const LayerFile& file, const NetworkOptions& network,
                                              const CudaTrainingStepOptions& step, const ExchangeBytes& exchange = {});

// InvalidArgument if more memory is needed than is free; the message gives the need by parts, the free memory, and the
// way out.
absl::Status CheckGpuMemory(const GpuMemoryNeed& need, const CudaDevice& device);

// Computes the need of a training on `device` and checks it, as the two functions above. First it decides whether the
// data set goes to the GPU, and sets step->data_on_gpu: with kAuto, if it takes at most half of the memory that
// everything else leaves free.
absl::StatusOr<GpuMemoryNeed> PlanGpuMemory(const LayerFile& file, const NetworkOptions& network, DataOnGpu data_on_gpu,
                                            const CudaDevice& device, CudaTrainingStepOptions* step,
                                            const ExchangeBytes& exchange = {});

// A line to print when everything is allocated: "GPU memory: 1.2 of 139.8 GiB (activations 1.0 GiB, ...)".
std::string DescribeGpuMemory(const GpuMemoryNeed& need, const CudaDevice& device);

}  // namespace starring

#endif  // STARRING_WORKER_STEP_GPU_MEMORY_H_
