// A slice owner whose floats are memory of a GPU: for a ring whose MPI moves such memory itself, and gradients,
// parameters and optimizer state then never leave the GPU but to another one.
//
// Every Add and Apply waits for the GPU, as what it computes is sent next and MPI knows nothing of streams: some ten
// microseconds for each chunk of 128 KiB.
//
// Cost: as much GPU memory as the parameter vector, once and again for each optimizer state vector, though a rank owns
// a part of it only: a slice is then where its elements are in the parameter vector, and the models are small.
//
// Thread safety: one thread at a time, any thread; Create on the device's.
#ifndef STARRING_WORKER_EXCHANGE_PEER_CUDA_SLICE_OWNER_H_
#define STARRING_WORKER_EXCHANGE_PEER_CUDA_SLICE_OWNER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/arithmetic/learning_rate.h"
#include "common/arithmetic/optimizer.h"
#include "common/layout.h"
#include "kernels/cuda/cuda_device.h"
#include "worker/exchange/peer/slice_owner.h"

namespace starring {

class CudaSliceOwner final : public SliceOwner {
 public:
  struct Options {
    CudaDevice* device = nullptr;                   // outlives the owner
    std::vector<std::vector<ElementRange>> slices;  // as OwnedSlices'
    int64_t element_count = 0;                      // of the parameter vector
    OptimizerConfig optimizer;
    LearningRateSchedule schedule;
  };
  // Optimizer state starts at zero. ResourceExhausted with the number of bytes.
  static absl::StatusOr<std::unique_ptr<CudaSliceOwner>> Create(const Options& options);

  // The parameter vector; zeros.
  std::span<float> parameters() { return parameters_; }

  // Between host and device, both complete when they return.
  void CopyToDevice(std::span<const float> host, std::span<float> device);
  void CopyToHost(std::span<const float> device, std::span<float> host);

  // Before a thread first lets MPI touch this memory.
  void MakeCurrent() { status_.Update(math_->MakeCurrent()); }

  std::span<float> Allocate(int64_t count) override;
  void Add(std::span<const float> own, std::span<float> sum) override;
  void Apply(const ApplyArgs& args) override;
  absl::Status status() const override { return status_; }
  void CopyState(int bucket, int vector, std::span<float> out) override;
  void CopyStateOut(std::span<const std::span<float>> whole) override;
  void CopyStateIn(std::span<const std::span<const float>> whole) override;

 private:
  explicit CudaSliceOwner(const Options& options) : options_(options) {}
  void Wait() { status_.Update(math_->Synchronize()); }

  const Options options_;
  absl::Status status_;
  std::vector<std::unique_ptr<DeviceBuffer>> buffers_;
  std::span<float> parameters_;
  std::vector<std::span<float>> state_;  // each as long as the parameter vector
  std::span<float> sum_;                 // a chunk with the owner's contribution
  std::unique_ptr<CudaVectorMath> math_;
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_CUDA_SLICE_OWNER_H_
