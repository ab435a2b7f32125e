// The numbers that change from one step to the next, and the results of a step.
//
// A captured graph repeats the arguments of its launches, so kernels can also read these numbers from device memory:
// see CudaDevice::BindStepValues and BindStepResult. Plain structs, for host and device.
#ifndef STARRING_KERNELS_CUDA_STEP_VALUES_H_
#define STARRING_KERNELS_CUDA_STEP_VALUES_H_

#include <cstdint>

namespace starring {

// The factors of one update, computed in double and rounded once, as in common/arithmetic/optimizer.cc. See
// MakeCudaOptimizerScalars.
struct CudaOptimizerScalars {
  float learning_rate = 0, momentum = 0, weight_decay = 0;                         // SGD
  float keep = 1, beta1 = 0, one_minus_beta1 = 1, beta2 = 0, one_minus_beta2 = 1;  // AdamW
  float step_size = 0, square_correction = 1, epsilon = 0;                         // AdamW
};

struct CudaStepValues {
  int64_t step = 0;          // dropout; in [0, 2^32)
  int64_t epoch = 0;         // augmentation; in [0, 2^32)
  int64_t first_sample = 0;  // dropout: position of this rank's first sample in the global batch
  float loss_scale = 1;      // loss: 1 / samples in the global batch
  CudaOptimizerScalars optimizer;
};

struct CudaStepResult {
  double loss_sum = 0;              // as LossResult's
  int64_t correct = 0;              // as LossResult's
  int64_t non_finite_element = -1;  // set by CudaDevice::FindNonFinite and ApplyOptimizer
};

}  // namespace starring

#endif  // STARRING_KERNELS_CUDA_STEP_VALUES_H_
