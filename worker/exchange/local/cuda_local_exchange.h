// One worker whose parameters stay on its GPU: nothing is exchanged, the optimizer runs where the gradients are, and
// only checkpoints want something back.
//
// Thread safety: one thread, the device's.
#ifndef STARRING_WORKER_EXCHANGE_LOCAL_CUDA_LOCAL_EXCHANGE_H_
#define STARRING_WORKER_EXCHANGE_LOCAL_CUDA_LOCAL_EXCHANGE_H_

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "common/arithmetic/optimizer.h"
#include "kernels/cuda/cuda_device.h"
#include "worker/exchange/gradient_exchange.h"

namespace starring {

// Submit and Await are not called: the training step calls Apply.
class CudaLocalExchange : public GradientExchange {
 public:
  // Of the GPU's memory, that Create allocates.
  static int64_t StateBytes(const OptimizerConfig& optimizer, int64_t element_count);
  // ResourceExhausted with the number of bytes. `device` outlives the exchange.
  static absl::StatusOr<std::unique_ptr<CudaLocalExchange>> Create(CudaDevice* device, const OptimizerConfig& optimizer,
                                                                   int64_t element_count);

  // The factors of the update of `step`. After Start.
  virtual CudaOptimizerScalars ScalarsOf(int64_t step) const = 0;
  // Enqueues one update of the whole parameter vector, on device memory, with the factors of the bound step values.
  virtual void Apply(std::span<const float> gradients, std::span<float> parameters) = 0;
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_LOCAL_CUDA_LOCAL_EXCHANGE_H_
