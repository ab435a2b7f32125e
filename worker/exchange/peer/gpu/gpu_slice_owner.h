// A slice owner among ranks that map each other's GPU memory (gpu_memory.h). One kernel adds the gradients of all ranks
// to an element where they are, updates, and writes the parameter into the memory of each rank.
//
// Each rank has the optimizer's state of its own slices and of no others.
//
// Thread safety: one thread at a time, any thread; Create on the device's.
#ifndef STARRING_WORKER_EXCHANGE_PEER_GPU_GPU_SLICE_OWNER_H_
#define STARRING_WORKER_EXCHANGE_PEER_GPU_GPU_SLICE_OWNER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/arithmetic/reduction_order.h"
#include "common/job/owned_slices.h"
#include "kernels/cuda/cuda_device.h"
#include "worker/exchange/peer/gpu/gpu_memory.h"
#include "worker/exchange/slice_owner.h"

namespace starring {

class GpuSliceOwner final : public SliceOwner {
 public:
  // `device` and `memory` outlive the owner. Optimizer state starts at zero. ResourceExhausted with the number of
  // bytes. REQUIRES: each slice has at most one range (OwnerMap::Ranges).
  static absl::StatusOr<std::unique_ptr<GpuSliceOwner>> Create(CudaDevice* device, const GpuMemory* memory, int rank,
                                                               SumOrder order, const OwnedSlices::Options& options);

  bool UpdateFromAll(int64_t step, int bucket) override;
  std::span<float> own_parameters() override { return memory_.parameters(rank_); }
  void CopyParametersIn(std::span<const float> parameters) override;
  void EnterThread() override { status_.Update(math_->MakeCurrent()); }
  absl::Status status() const override { return status_; }
  void CopyState(int bucket, int vector, std::span<float> out) override;
  void CopyStateOut(std::span<const std::span<float>> whole) override;
  void CopyStateIn(std::span<const std::span<const float>> whole) override;

  // Gradients stay where they are, so there is nothing to allocate, and nothing arrives to be added.
  std::span<float> Allocate(int64_t count) override;
  void Add(std::span<const float> own, std::span<float> sum) override;
  void Apply(const ApplyArgs& args) override;

 private:
  GpuSliceOwner(const GpuMemory* memory, int rank, SumOrder order, const OwnedSlices::Options& options);
  ElementRange SliceOf(int bucket) const;
  // The state of the bucket's slice.
  std::span<float> State(int bucket, int vector) const;
  void Wait() { status_.Update(math_->Synchronize()); }

  const GpuMemory& memory_;
  const int rank_;
  const SumOrder order_;
  const OwnedSlices::Options options_;
  std::vector<int64_t> state_offsets_;  // by bucket: of its slice in each state vector
  int64_t state_elements_ = 0;
  std::vector<std::unique_ptr<DeviceBuffer>> state_;
  std::unique_ptr<CudaVectorMath> math_;
  absl::Status status_;
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_GPU_GPU_SLICE_OWNER_H_
