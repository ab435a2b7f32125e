// Where a GPU's training batches are: in pinned memory, which the loader itself fills, and in slots on the GPU. While
// steps run on the other slots, the next batch arrives in one, by one copy.
//
// In front of each batch in pinned memory is room that the loader does not know of, for the step's values: Fill writes
// them, and the copy brings both.
//
// Who waits for whom. F is the feed stream, S the device's stream.
//   what                                    must follow                            by
//   the loader fills a batch's memory       F copied the batch that was there      host: AwaitCopy before Loader::Next,
//                                                                                    which gives the memory back
//   F copies a batch to its slot            S's step on the slot has read the      host: Finish waited for `done`
//                                             batch that was there
//   S's step reads the slot                 F copied the batch                     S waits for `fed`
//   the host reads `result`                 S's step copied it                     host: Finish waited for `done`
//
// AwaitCopy keeps no step waiting: the batch of step t is awaited when step t is launched, and the next thing to be
// enqueued is a copy, which the feed stream would not begin before that one has ended.
//
// Thread safety: one thread, the device's.
#ifndef STARRING_WORKER_STEP_CUDA_BATCH_SLOTS_H_
#define STARRING_WORKER_STEP_CUDA_BATCH_SLOTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_device.h"
#include "worker/data/loader.h"

namespace starring {

class CudaBatchSlots final : public BatchMemory {
 public:
  struct Options {
    CudaDevice* device = nullptr;  // outlives the slots
    int count = 0;                 // at least 2
    int64_t batch_max = 0;
    int64_t image_values = 0;  // bytes of an image
  };
  // What Create allocates on the GPU; `device` does not matter.
  static int64_t DeviceBytes(const Options& options);
  // The slots, not yet what batches they are filled with. ResourceExhausted with the number of bytes.
  static absl::StatusOr<std::unique_ptr<CudaBatchSlots>> Create(const Options& options);
  ~CudaBatchSlots() override;

  // Pinned.
  absl::StatusOr<std::byte*> Allocate(int64_t size_bytes) override;

  class Slot {
   public:
    // Of the batch that it was filled with.
    const BatchPlan& plan() const { return plan_; }
    bool is_full() const { return is_full_; }  // no step was run on it
    bool runs() const { return runs_; }        // a step was run on it and is not known to be finished

    // Device memory.
    const CudaStepValues* values() const { return At<const CudaStepValues>(0); }
    CudaStepResult* device_result() const;
    const int32_t* labels() const;
    const uint8_t* pixels() const;
    const uint32_t* samples() const;  // instead of the two above, if the loader brings Format::kSamples

    // Pinned; the step copies device_result() here.
    CudaStepResult* result() const { return static_cast<CudaStepResult*>(result_->data()); }

    // Makes what is enqueued on `stream` from now on follow the batch's arrival; then, that a step was.
    absl::Status BeginStep(CudaStream* stream);
    absl::Status EndStep(CudaStream* stream);
    // Waits for the step. REQUIRES: runs().
    absl::Status Finish();

   private:
    friend class CudaBatchSlots;
    template <typename T>
    T* At(int64_t offset) const {
      return reinterpret_cast<T*>(static_cast<std::byte*>(device_->data()) + offset);
    }

    std::unique_ptr<DeviceBuffer> device_;
    std::unique_ptr<PinnedBuffer> result_;
    std::unique_ptr<CudaEvent> fed_;   // the batch is on the GPU
    std::unique_ptr<CudaEvent> done_;  // the step that used it
    int64_t pixels_ = 0;               // where they begin: the same for every batch of a loader
    BatchPlan plan_;
    bool is_full_ = false, runs_ = false;
  };

  int count() const { return options_.count; }
  // Step t has slot t % count.
  int IndexOf(int64_t step) const { return static_cast<int>(step % options_.count); }
  Slot& of(int64_t step) { return slots_[static_cast<size_t>(IndexOf(step))]; }

  // Copies `batch`, with the step's values for the GPU, on its way.
  // REQUIRES: !slot.runs(); the batch is of a loader with this memory.
  absl::Status Fill(Slot& slot, const Batch& batch, const CudaOptimizerScalars& optimizer);

  // Waits until the last batch that a slot was filled with has arrived: its memory is nobody's.
  absl::Status AwaitCopy();

 private:
  explicit CudaBatchSlots(const Options& options);
  absl::Status AllocateSlots();
  std::byte* HeaderOf(const Batch& batch) const;

  const Options options_;
  const int64_t batch_bytes_max_;
  std::vector<std::unique_ptr<PinnedBuffer>> host_;  // header and batch
  std::unique_ptr<CudaStream> feed_;
  std::vector<Slot> slots_;
  CudaEvent* last_fed_ = nullptr;
};

}  // namespace starring

#endif  // STARRING_WORKER_STEP_CUDA_BATCH_SLOTS_H_
