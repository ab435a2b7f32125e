// The memory of a GPU's training batches: pinned host memory, which the loader fills, and slots on the GPU. While steps
// run on the other slots, the next batch is copied to a free slot, in one copy.
//
// In front of each batch in pinned memory there is room, unknown to the loader, for the step's values. Fill writes
// them, and the copy brings both.
//
// Order of the accesses. F is the feed stream, S the device's stream. "Host" is the device's thread.
//   what                                    must follow                            by
//   the loader fills a batch's memory       F copied the batch that was there      host: AwaitCopy before Loader::Next,
//                                                                                    which gives the memory back
//   F copies a batch to its slot            S's step on the slot has read the      host: Finish waited for `done`
//                                             batch that was there
//   S's step reads the slot                 F copied the batch                     S waits for `fed`
//   the host reads `result`                 S's step copied it                     host: Finish waited for `done`
//
// AwaitCopy delays no step: the batch of step t is awaited when step t is launched, and the next work to be enqueued is
// a copy, which the feed stream would not begin before that one has ended.
//
// Thread safety: one thread, the device's.
#ifndef STARRING_WORKER_STEP_CUDA_BATCH_SLOTS_H_
#define STARRING_WORKER_STEP_CUDA_BATCH_SLOTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
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
    int64_t target_bytes = sizeof(int32_t);  // LayOutBatch's
    int64_t image_bytes = 0;
  };
  // Bytes of GPU memory that Create allocates; options.device is not used.
  static int64_t DeviceBytes(const Options& options);
  // Allocates the slots, but no pinned memory, which Allocate does. ResourceExhausted with the number of bytes.
  static absl::StatusOr<std::unique_ptr<CudaBatchSlots>> Create(const Options& options);
  ~CudaBatchSlots() override;

  // For the loader: pinned memory.
  absl::StatusOr<std::byte*> Allocate(int64_t size_bytes) override;

  class Slot {
   public:
    // The plan of the batch with which the slot was filled.
    const BatchPlan& plan() const { return plan_; }
    bool is_full() const { return is_full_; }  // filled, and no step has been enqueued on it
    bool runs() const { return runs_; }        // a step has been enqueued on it, and Finish has not waited for it

    // Device memory.
    const CudaStepValues* values() const { return At<const CudaStepValues>(0); }
    CudaStepResult* device_result() const;
    const void* targets() const;      // Batch::target_data
    const uint8_t* stored() const;    // Batch::stored
    const uint32_t* samples() const;  // instead of the two above, if the loader's format is kSamples

    // Recorded at the end of the step. REQUIRES: runs().
    CudaEvent* done() const { return done_.get(); }

    // Pinned memory, to which the step copies device_result().
    CudaStepResult* result() const { return static_cast<CudaStepResult*>(result_->data()); }

    // BeginStep: work enqueued on `stream` from now on runs after the batch has arrived. EndStep: the whole step has
    // been enqueued.
    absl::Status BeginStep(CudaStream* stream);
    absl::Status EndStep(CudaStream* stream);
    // Waits for the step, or leaves it to `wait` to wait for the event. REQUIRES: runs().
    absl::Status Finish();
    absl::Status Finish(absl::FunctionRef<absl::Status(CudaEvent* done)> wait);

   private:
    friend class CudaBatchSlots;
    template <typename T>
    T* At(int64_t offset) const {
      return reinterpret_cast<T*>(static_cast<std::byte*>(device_->data()) + offset);
    }

    std::unique_ptr<DeviceBuffer> device_;
    std::unique_ptr<PinnedBuffer> result_;
    std::unique_ptr<CudaEvent> fed_;   // the batch has arrived on the GPU
    std::unique_ptr<CudaEvent> done_;  // the step on the slot has ended
    int64_t stored_ = 0;               // the offset of the values: the same for every batch of a loader
    BatchPlan plan_;
    bool is_full_ = false, runs_ = false;
  };

  int count() const { return options_.count; }
  // Step t has slot t % count.
  int IndexOf(int64_t step) const { return static_cast<int>(step % options_.count); }
  Slot& of(int64_t step) { return slots_[static_cast<size_t>(IndexOf(step))]; }

  // Starts the copy of `batch` and of the step's values to `slot`.
  // REQUIRES: !slot.runs(); the batch comes from a loader that uses this memory.
  absl::Status Fill(Slot& slot, const Batch& batch, const CudaOptimizerScalars& optimizer);

  // Waits until the last copy to a slot has ended: then the loader may have that batch's memory back.
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
