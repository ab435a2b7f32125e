// The loss: softmax, cross entropy, its gradient, and the sums over the batch, in one kernel.
#ifndef STARRING_KERNELS_CUDA_SOFTMAX_CROSS_ENTROPY_H_
#define STARRING_KERNELS_CUDA_SOFTMAX_CROSS_ENTROPY_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/step_values.h"

namespace starring::cuda {

struct LossSums {
  double loss = 0;
  int64_t correct = 0;
};

struct SoftmaxCrossEntropyArgs {
  int64_t batch = 0, classes = 0;
  float label_smoothing = 0;
  const float* logits = nullptr;
  const int32_t* labels = nullptr;
  float* dlogits = nullptr;     // null: no gradient
  LossSums* samples = nullptr;  // (batch): temporary
  LossSums* total = nullptr;
  unsigned* counter = nullptr;       // 0 before and after
  CudaStepResult* result = nullptr;  // unless null, gets the total too
  // loss_scale, unless `bound`, in device memory, has it when the kernel runs.
  float loss_scale = 1;
  const CudaStepValues* bound = nullptr;
};

// total = the sums over the batch of -sum over c of target(label)[c] * log softmax(logits)[c], and of argmax == label
// (the first of equal maxima); dlogits = loss_scale * (softmax(logits) - target(label)), where target(label) =
// (1 - label_smoothing) * onehot(label) + label_smoothing / classes.
// Shapes:      logits, dlogits: (batch, classes) float32; labels: (batch); dlogits may alias logits.
// Writes:      total, dlogits are overwritten (=).
// Launch:      256 threads a block, one warp per sample, 4 KiB of shared memory; the last block adds the samples up.
// Requires:    batch >= 1; labels in [0, classes). A label outside makes the loss and the sample's gradient NaN, which
//              the trainer refuses: a kernel cannot fail. label_smoothing in [0, 1).
// Cost:        logits read once from memory and twice from the cache, dlogits written once; a batch is a few KiB, so
//              that the launch takes most of the time. Smoothing adds a sum over each sample's classes. Accesses have 4
//              bytes: a row of 10 classes is not aligned to 16.
// Determinism: bitwise; sums are trees of fixed shape, and atomics only count blocks. Reference: double, tolerance
//              1e-5.
[[nodiscard]] cudaError_t SoftmaxCrossEntropy(cudaStream_t stream, const SoftmaxCrossEntropyArgs& args);

}  // namespace starring::cuda

#endif  // STARRING_KERNELS_CUDA_SOFTMAX_CROSS_ENTROPY_H_
