// A slice owner among ranks that map each other's GPU memory (gpu_memory.h). In a star, one kernel adds the gradients
// of all ranks to an element where they are, updates, and writes the parameter into the memory of each rank. In a ring
// (ring_hops.h), a rank reads the memory of its left neighbour and writes its own.
//
// Each rank has the optimizer's state of its own slices and of no others. Calls that begin work do not wait for the
// GPU. Copies do, and they must not be called while such work is under way.
//
// Thread safety: one thread at a time, any thread; Create on the device's.
#ifndef STARRING_WORKER_EXCHANGE_PEER_GPU_GPU_SLICE_OWNER_H_
#define STARRING_WORKER_EXCHANGE_PEER_GPU_GPU_SLICE_OWNER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/arithmetic/reduction_order.h"
#include "common/job/owned_slices.h"
#include "common/job/slice_places.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/element_rows.h"
#include "worker/exchange/peer/gpu/gpu_completions.h"
#include "worker/exchange/peer/gpu/gpu_flags.h"
#include "worker/exchange/peer/gpu/gpu_memory.h"
#include "worker/exchange/peer/gpu/ring_hops.h"
#include "worker/exchange/slice_owner.h"

namespace starring {

class GpuSliceOwner final : public SliceOwner, public RingHops {
 public:
  struct Options {
    CudaDevice* device = nullptr;
    const GpuMemory* memory = nullptr;
    int rank = 0;
    SumOrder order = SumOrder::kChain;
    OwnedSlices::Options owned;
    // A ring's chunks, by the rank that owns them and bucket; a star has none.
    std::vector<std::vector<ElementRows>> chunks;
    std::function<void()> ring;  // called by a thread of the owner when work that was begun has ended
  };
  // `device` and `memory` outlive the owner. Optimizer state starts at zero. ResourceExhausted with the number of
  // bytes.
  static absl::StatusOr<std::unique_ptr<GpuSliceOwner>> Create(Options options);
  // About the GPU memory of an owner of an equal share.
  static int64_t StateBytes(const OptimizerConfig& optimizer, int64_t element_count, int rank_count);

  int64_t BeginUpdateFromAll(int64_t step, int bucket) override;
  // The same in the order of `stream`, captured or not, with the factors that `values` has when the work runs, and with
  // this owner's byte of `flags` at its end. The device's thread.
  absl::Status EnqueueUpdateFromAll(GpuFlags* flags, CudaStream* stream, int slot, int bucket,
                                    const CudaStepValues* values) const;
  // The same for all hops of a ring.
  absl::Status EnqueueHops(GpuFlags* flags, CudaStream* stream, int slot, int bucket,
                           const CudaStepValues* values) const;
  // For CudaStepValues.
  CudaOptimizerScalars ScalarsOf(int64_t step) const;
  const std::atomic<int64_t>* finished() const override { return &completions_->finished(); }
  int64_t BeginAdd(int bucket, int chunk, From from) override;
  int64_t BeginUpdate(int64_t step, int bucket, From from) override;
  int64_t BeginCopy(int bucket, int chunk) override;
  const std::atomic<int64_t>& hops_finished() const override { return completions_->finished(); }

  std::span<float> own_parameters() override { return memory_.parameters(options_.rank); }
  void CopyParametersIn(std::span<const float> parameters) override;
  void EnterThread() override { status_.Update(math_->MakeCurrent()); }
  void Stop() override { completions_->Stop(); }
  absl::Status status() const override { return status_.ok() ? completions_->status() : status_; }
  void CopyState(int bucket, int vector, std::span<float> out) override;
  void CopyStateOut(std::span<const std::span<float>> whole) override;
  void CopyStateIn(std::span<const std::span<const float>> whole) override;

  // Gradients stay where they are, so there is nothing to allocate, and nothing arrives to be added.
  std::span<float> Allocate(int64_t count) override;
  void Add(std::span<const float> own, std::span<float> sum) override;
  void Apply(const ApplyArgs& args) override;

 private:
  explicit GpuSliceOwner(Options options);
  int left() const { return (options_.rank + memory_.rank_count() - 1) % memory_.rank_count(); }
  // The left neighbour's array, as a whole vector.
  const float* Left(From from) const;
  // A part of a state vector.
  std::span<float> State(int vector, ElementRange range) const;
  // f(state, range): the bucket's owned ranges, and their parts of a state vector.
  template <class F>
  void ForEachState(int vector, int bucket, F f) const;
  // Both REQUIRE a ring. Chunk `chunk` of the bucket, and the update of the own one.
  CudaPeerHop HopOf(int bucket, int chunk, From from) const;
  CudaPeerHop CopyOf(int bucket, int chunk) const;
  CudaPeerUpdate UpdateByRing(int64_t step, int bucket, From from) const;
  // The arguments of an update of the bucket's slice but for gradients and parameters.
  CudaPeerUpdate UpdateOf(int64_t step, int bucket) const;
  CudaPeerUpdate UpdateFromAll(int64_t step, int bucket) const;
  void Wait() { status_.Update(math_->Synchronize()); }

  const Options options_;
  const GpuMemory& memory_;
  const SlicePlaces places_;       // of slices and their state
  std::vector<ElementRows> rows_;  // of slices, by bucket
  std::vector<std::unique_ptr<DeviceBuffer>> state_;
  std::unique_ptr<CudaVectorMath> math_;
  absl::Status status_;
  // Last, so that its thread ends before what the GPU's work uses.
  std::unique_ptr<GpuCompletions> completions_;
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_GPU_GPU_SLICE_OWNER_H_
