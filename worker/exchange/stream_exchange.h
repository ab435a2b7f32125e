// The part of an exchange whose work is in the order of a GPU's stream. The GPU itself waits for other ranks, so a
// training step enqueues a round with its own work, captured or not, and the host waits for no bucket.
//
// For each round, in this order: ScalarsOf, EnqueueBucket for every bucket as for Submit, EnqueueEnd, AwaitRound.
//
// Slots. A captured round is launched again and again, and its waits have the values of the capture. So rounds have
// *slots*, in turn, and each slot has values of its own. Two slots are enough: no rank is more than one round ahead of
// another in any bucket.
//
// Thread safety: the trainer's thread.
#ifndef STARRING_WORKER_EXCHANGE_STREAM_EXCHANGE_H_
#define STARRING_WORKER_EXCHANGE_STREAM_EXCHANGE_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "kernels/cuda/cuda_device.h"

namespace starring {

class StreamExchange {
 public:
  // Round t has slot t % kSlots.
  static constexpr int kSlots = 4;
  static int SlotOf(int64_t round) { return static_cast<int>(round % kSlots); }

  // The factors of the update of `round`, for the step values that EnqueueBucket is given.
  virtual CudaOptimizerScalars ScalarsOf(int64_t round) const = 0;

  // Enqueues the exchange of `bucket`, whose gradient is what `stream` has written so far to the exchange's memory.
  // Nothing that precedes it on any stream of this process may wait for what follows it. `values`: device memory, which
  // has ScalarsOf the round when the work runs.
  virtual absl::Status EnqueueBucket(CudaStream* stream, int slot, int bucket, const CudaStepValues* values) = 0;
  // Work on `stream` from now on reads the parameters of the round, and may overwrite its gradients.
  virtual absl::Status EnqueueEnd(CudaStream* stream, int slot) = 0;

  // Waits, as Await does, until the GPU has passed `done`, which was recorded after EnqueueEnd. The first waits for
  // rounds come in the order of the rounds. After an error no result of the round, or of a later one, may be used.
  virtual absl::Status AwaitRound(int64_t round, CudaEvent* done) = 0;
  // A contribution to `round` that was not finite; the same on all ranks. After AwaitRound, before the next call of
  // EnqueueBucket or launch for the slot.
  struct NonFinite {
    int rank = 0;
    int64_t element = 0;  // of the parameter vector
  };
  virtual std::optional<NonFinite> FindNonFinite(int64_t round) const = 0;

 protected:
  ~StreamExchange() = default;
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_STREAM_EXCHANGE_H_
