// The optimizers' formulas for one element, which the updates of one GPU and of several share.
//
// Device code of .cu files only.
#ifndef STARRING_KERNELS_CUDA_UPDATE_FORMULA_H_
#define STARRING_KERNELS_CUDA_UPDATE_FORMULA_H_

#include <cuda_runtime.h>

#include "kernels/cuda/step_values.h"

namespace starring::cuda {

enum class Update { kSgd, kMomentum, kNesterov, kAdamW };

// Returns the new parameter and updates the states. Operations are in the order of common/arithmetic/optimizer.cc, and
// nvcc contracts none of them (-fmad=false), so that CPU and GPU give equal bits.
template <Update kUpdate>
__device__ inline float UpdateOne(const CudaOptimizerScalars& s, float gradient, float in, float& first,
                                  float& second) {
  if constexpr (kUpdate == Update::kAdamW) {
    const float mean = s.beta1 * first + s.one_minus_beta1 * gradient;
    const float square = s.beta2 * second + s.one_minus_beta2 * gradient * gradient;
    first = mean;
    second = square;
    return s.keep * in - s.step_size * mean / (sqrtf(square) / s.square_correction + s.epsilon);
  }
  const float decayed = gradient + s.weight_decay * in;
  if constexpr (kUpdate == Update::kSgd) return in - s.learning_rate * decayed;
  const float velocity = s.momentum * first + decayed;
  first = velocity;
  if constexpr (kUpdate == Update::kMomentum) return in - s.learning_rate * velocity;
  return in - s.learning_rate * (decayed + s.momentum * velocity);
}

}  // namespace starring::cuda

#endif  // STARRING_KERNELS_CUDA_UPDATE_FORMULA_H_
