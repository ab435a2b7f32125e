// The numbers of a step that change from one step to the next.
//
// A captured graph repeats the arguments of its launches. So these may also be read from device memory: see
// CudaDevice::BindStepValues. And what a step answers, for CudaDevice::BindStepResult. Plain structs, for host and
// device.
#ifndef STARRING_KERNELS_CUDA_STEP_VALUES_H_
#define STARRING_KERNELS_CUDA_STEP_VALUES_H_

#include <cstdint>

namespace starring {

// The factors of one update, made in double and rounded once, as common/arithmetic/optimizer.cc makes them.
// See kernels/cuda/cuda_optimizer.cc.
struct CudaOptimizerScalars {
  float learning_rate = 0, momentum = 0, weight_decay = 0;                         // SGD
  float keep = 1, beta1 = 0, one_minus_beta1 = 1, beta2 = 0, one_minus_beta2 = 1;  // AdamW
  float step_size = 0, square_correction = 1, epsilon = 0;                         // AdamW
};

struct CudaStepValues {
  int64_t step = 0;          // dropout; in [0, 2^32)
  int64_t epoch = 0;         // augmentation; in [0, 2^32)
  int64_t first_sample = 0;  // dropout: position of this rank's first sample in the global batch
  float loss_scale = 1;      // softmax cross entropy: 1 / samples in the global batch
  CudaOptimizerScalars optimizer;
};

struct CudaStepResult {
  double loss_sum = 0;              // LossResult's
  int64_t correct = 0;              // likewise
  int64_t non_finite_element = -1;  // of CudaDevice::FindNonFinite, or ApplyOptimizer
};

}  // namespace starring

#endif  // STARRING_KERNELS_CUDA_STEP_VALUES_H_
