#include <cmath>

#include "common/arithmetic/optimizer.h"
#include "kernels/cuda/cuda_device.h"

namespace starring {

// The host computes the factors, once for all elements of an update. Kernels need no more than step_values.h.
CudaOptimizerScalars MakeCudaOptimizerScalars(const OptimizerConfig& config, float learning_rate, int64_t update) {
  CudaOptimizerScalars scalars = {.learning_rate = learning_rate,
                                  .momentum = static_cast<float>(config.momentum),
                                  .weight_decay = static_cast<float>(config.weight_decay)};
  if (config.kind == OptimizerKind::kSgd) return scalars;
  // They are computed in double and rounded once, in the order of common/arithmetic/optimizer.cc, so that the factors
  // have the same bits.
  const double correction1 = 1 - IntegerPower(config.beta1, update);
  const double correction2 = 1 - IntegerPower(config.beta2, update);
  const double rate = learning_rate;
  scalars.keep = static_cast<float>(1 - rate * config.weight_decay);
  scalars.beta1 = static_cast<float>(config.beta1);
  scalars.one_minus_beta1 = static_cast<float>(1 - config.beta1);
  scalars.beta2 = static_cast<float>(config.beta2);
  scalars.one_minus_beta2 = static_cast<float>(1 - config.beta2);
  scalars.step_size = static_cast<float>(rate / correction1);
  scalars.square_correction = static_cast<float>(std::sqrt(correction2));
  scalars.epsilon = static_cast<float>(config.epsilon);
  return scalars;
}

}  // namespace starring
