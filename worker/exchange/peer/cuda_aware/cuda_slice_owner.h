// A slice owner whose floats are in the memory of a GPU. It serves a ring or co-located star whose MPI moves such
// memory itself: gradients, parameters and optimizer state then leave the GPU only for another GPU. It also serves NCCL
// (peer/nccl/nccl_transport.h), with which each rank owns all elements.
//
// Add, Apply and Copy are enqueued on one stream. Copies that pack or unpack a message are one kernel (PackedRows). MPI
// knows nothing of streams, so Complete waits for the GPU before a message leaves or arrives: about ten microseconds.
//
// Cost: GPU memory for the parameter vector, for the optimizer state of what this rank owns, and for the messages of
// the machine that it serves.
//
// Thread safety: one thread at a time, any thread; Create on the device's.
#ifndef STARRING_WORKER_EXCHANGE_PEER_CUDA_AWARE_CUDA_SLICE_OWNER_H_
#define STARRING_WORKER_EXCHANGE_PEER_CUDA_AWARE_CUDA_SLICE_OWNER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/job/owned_slices.h"
#include "common/job/slice_places.h"
#include "kernels/cuda/cuda_device.h"
#include "worker/exchange/peer/cuda_aware/packed_rows.h"
#include "worker/exchange/slice_owner.h"

namespace starring {

class CudaSliceOwner final : public SliceOwner {
 public:
  // `device` outlives the owner. Optimizer state starts at zero. Later Allocates take reserved_elements from memory
  // that Create has allocated. ResourceExhausted with the number of bytes.
  static absl::StatusOr<std::unique_ptr<CudaSliceOwner>> Create(CudaDevice* device, const OwnedSlices::Options& options,
                                                                int64_t reserved_elements = 0);
  // The GPU memory of an owner.
  struct Size {
    int64_t element_count = 0;
    int64_t owned_elements = 0;
    int64_t reserved_elements = 0;
  };
  static int64_t Bytes(const OptimizerConfig& optimizer, const Size& size);

  // Copies between host and device; complete on return.
  void CopyToDevice(std::span<const float> host, std::span<float> device);
  void CopyToHost(std::span<const float> device, std::span<float> host);

  // Frees `buffer` with the owner.
  void Keep(std::unique_ptr<DeviceBuffer> buffer) { buffers_.push_back(std::move(buffer)); }

  // Kernels that run while the caller goes on; their result is of no use.
  void QueueKernels(int count);

  std::span<float> own_parameters() override { return parameters_; }  // zeros until they are copied in
  void CopyParametersIn(std::span<const float> parameters) override { CopyToDevice(parameters, parameters_); }
  // MPI may look at device memory in any poll, and UCX does so with the polling thread's current GPU.
  void EnterThread() override { status_.Update(math_->MakeCurrent()); }
  std::span<float> Allocate(int64_t count) override;
  void Add(std::span<const float> own, std::span<float> sum) override;
  void Apply(const ApplyArgs& args) override;
  void Copy(std::span<const float> from, std::span<float> to) override;
  void Complete() override;
  absl::Status status() const override { return status_; }
  void CopyState(int bucket, int vector, std::span<float> out) override;
  void CopyStateOut(std::span<const std::span<float>> whole) override;
  void CopyStateIn(std::span<const std::span<const float>> whole) override;

 private:
  CudaSliceOwner(CudaDevice* device, const OwnedSlices::Options& options)
      : device_(*device), options_(options), places_(options.slices) {}
  // f(state, range): a range that is owned, and its part of state vector `vector`.
  template <class F>
  void ForEachState(int vector, F f);
  void Wait();
  // Enqueues the copies of rows_, which becomes empty.
  void EnqueueRows();

  CudaDevice& device_;
  const OwnedSlices::Options options_;
  const SlicePlaces places_;
  absl::Status status_;
  std::vector<std::unique_ptr<DeviceBuffer>> buffers_;
  std::span<float> reserved_;  // what Allocate has not given away
  std::span<float> parameters_;
  std::vector<std::span<float>> state_;  // at the places of places_
  std::span<float> sum_;                 // scratch: a chunk's sum including this rank's own gradient
  PackedRows rows_;                      // copies that are not enqueued yet
  bool has_enqueued_ = false;            // since the last wait
  std::unique_ptr<CudaVectorMath> math_;
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_CUDA_AWARE_CUDA_SLICE_OWNER_H_
