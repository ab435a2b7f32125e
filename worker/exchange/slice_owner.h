// The arithmetic of a rank on the floats that pass through it. The rank adds its own gradient to a partial sum. As the
// owner of a slice, it also applies the optimizer and keeps the optimizer's state. The floats are in host memory
// (HostSliceOwner) or in the memory of a GPU (cuda_aware/cuda_aware_owner.h); the bits are the same.
//
// Thread safety: one thread at a time, any thread; of an owner in host memory, several threads may Apply different
// pieces of one bucket at the same time.
#ifndef STARRING_WORKER_EXCHANGE_SLICE_OWNER_H_
#define STARRING_WORKER_EXCHANGE_SLICE_OWNER_H_

#include <atomic>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/copy_array.h"
#include "common/base/memory.h"
#include "common/job/owned_slices.h"

namespace starring {

class SliceOwner {
 public:
  virtual ~SliceOwner() = default;

  // `count` floats in the owner's memory, valid as long as the owner. Empty, with the reason in status(), if there is
  // not enough memory.
  virtual std::span<float> Allocate(int64_t count) = 0;

  // The owner of a GPU's memory enqueues these: later ones see what earlier ones have written, and Complete ends them.
  virtual void Add(std::span<const float> own, std::span<float> sum) = 0;  // sum += own
  virtual void Apply(const ApplyArgs& args) = 0;                           // as OwnedSlices::Apply
  // to = from. May be done as late as in Complete, after all other work but in the order of copies. REQUIRES: they have
  // one length and do not overlap. Nothing that is enqueued after it and before Complete writes `from`, or uses `to`,
  // but copies.
  virtual void Copy(std::span<const float> from, std::span<float> to) { CopyArray(from, to); }
  // Waits until all of them have ended, so that the result may be sent, or read by the training step. Costs nothing if
  // nothing is enqueued.
  virtual void Complete() {}
  // Begins to add the gradients of all ranks to this rank's slice of `bucket` and to update its parameters on all
  // ranks, if the owner maps the memory of all of them (peer/gpu/gpu_slice_owner.h). Returns the number that
  // *finished() reaches when that is done; it stays below after an error. 0: the owner maps no such memory, and has
  // done nothing.
  virtual int64_t BeginUpdateFromAll(int64_t /*step*/, int /*bucket*/) { return 0; }
  virtual const std::atomic<int64_t>* finished() const { return nullptr; }
  // The first error of all calls. After an error no result may be used.
  virtual absl::Status status() const = 0;

  // The parameter vector where the owner keeps it; empty if the parameters stay in the host memory that the exchange
  // was started with.
  virtual std::span<float> own_parameters() { return {}; }
  // Copies `parameters` into own_parameters(), if there are any.
  virtual void CopyParametersIn(std::span<const float>) {}
  // Ends the owner's own threads. Afterwards the device may go, even if the owner stays.
  virtual void Stop() {}
  // Called on every thread but the one that made the owner, before that thread polls the transport.
  virtual void EnterThread() {}

  // Optimizer state, from and to host memory; as in OwnedSlices.
  virtual void CopyState(int bucket, int vector, std::span<float> out) = 0;
  virtual void CopyStateOut(std::span<const std::span<float>> whole) = 0;
  virtual void CopyStateIn(std::span<const std::span<const float>> whole) = 0;
};

// Floats in host memory.
class HostSliceOwner : public SliceOwner {
 public:
  explicit HostSliceOwner(OwnedSlices owned) : owned_(std::move(owned)) {}

  std::span<float> Allocate(int64_t count) override;
  void Add(std::span<const float> own, std::span<float> sum) override;
  void Apply(const ApplyArgs& args) override { owned_.Apply(args); }
  absl::Status status() const override { return absl::OkStatus(); }
  void CopyState(int bucket, int vector, std::span<float> out) override;
  void CopyStateOut(std::span<const std::span<float>> whole) override { owned_.CopyStateOut(whole); }
  void CopyStateIn(std::span<const std::span<const float>> whole) override { owned_.CopyStateIn(whole); }

 protected:
  OwnedSlices& owned() { return owned_; }

 private:
  OwnedSlices owned_;
  std::vector<AlignedFloats> allocated_;
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_SLICE_OWNER_H_
