// The loss, its gradient, and the sums over the batch, in one kernel.
#ifndef STARRING_KERNELS_CUDA_LOSS_H_
#define STARRING_KERNELS_CUDA_LOSS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/step_values.h"

namespace starring::cuda {

struct LossSums {
  double loss = 0;
  int64_t correct = 0;
};

// LossKind of kernels/device.h.
enum class LossFunction { kSoftmax, kMse, kBce };

struct LossArgs {
  LossFunction function = LossFunction::kSoftmax;
  int64_t batch = 0, outputs = 0;
  float label_smoothing = 0;
  const float* y = nullptr;
  const int32_t* labels = nullptr;  // kSoftmax
  const float* values = nullptr;    // kMse, kBce
  float* dy = nullptr;              // null: no gradient
  LossSums* samples = nullptr;      // (batch): temporary
  LossSums* total = nullptr;
  unsigned* counter = nullptr;       // 0 before and after
  CudaStepResult* result = nullptr;  // unless null, gets the total too
  // loss_scale, unless `bound`, in device memory, has it when the kernel runs.
  float loss_scale = 1;
  const CudaStepValues* bound = nullptr;
};

// total = the sums over the batch of a sample's loss and of whether it is right, as kernels/device.h has them for
// LossSpec and LossResult; dy = loss_scale * the gradient of each sample's loss.
// Shapes:      y, dy, values: (batch, outputs) float32; labels: (batch); dy may alias y.
// Writes:      total, dy are overwritten (=).
// Launch:      256 threads a block, one warp per sample, 4 KiB of shared memory; the last block adds the samples up.
// Requires:    batch >= 1; labels in [0, outputs). A label outside makes the loss and the sample's gradient NaN, which
//              the trainer refuses: a kernel cannot fail. label_smoothing in [0, 1).
// Cost:        kSoftmax reads y once from memory and twice from the cache, the others once; dy is written once. A
//              batch is a few KiB, so that the launch takes most of the time. Smoothing adds a sum over each sample's
//              classes. Accesses have 4 bytes: a row of 10 classes is not aligned to 16.
// Determinism: bitwise; sums are trees of fixed shape, and atomics only count blocks. Reference: double, tolerance
//              1e-5.
[[nodiscard]] cudaError_t RunLoss(cudaStream_t stream, const LossArgs& args);

}  // namespace starring::cuda

#endif  // STARRING_KERNELS_CUDA_LOSS_H_
