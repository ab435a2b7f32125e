// The owner of slices: sums contributions, applies the optimizer, seals the new parameters. Knows nothing of gRPC or
// MPI.
//
// One class, two ways in, because the sum is made in two places:
//   Contribute  star: whole contributions arrive in any order; when the last worker's is there the shard adds them in
//               reduction order and applies the optimizer in the same pass over memory, into a buffer of its own.
//   Apply       ring and local: the sum is already made (by the ring, but for the owner's own contribution, or there is
//               one worker); the caller lends the parameters, which are updated in place.
// A shard is used in one of the two ways for its whole life.
//
// Every bucket advances by itself: there is no barrier over buckets. A bucket's *step in progress* is the one whose
// update it has not made yet; it starts at Options::first_step.
//
// Thread safety: any thread may call any method. Calls for different buckets run at the same time; calls for one bucket
// are serialised, the call that completes a bucket sums under that bucket's lock only.
#ifndef STARRING_COMMON_PARAMETER_SHARD_H_
#define STARRING_COMMON_PARAMETER_SHARD_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/aligned_floats.h"
#include "common/arithmetic/learning_rate.h"
#include "common/arithmetic/optimizer.h"
#include "common/layout.h"
#include "common/sealed_slice.h"

namespace starring {

// A float32 array as it lies in received messages: little-endian bytes in pieces of any alignment and length.
using BytePieces = std::span<const std::span<const std::byte>>;

// One worker's gradient of one slice. `keeper` keeps the bytes of `pieces` alive; the shard drops it when the sum is
// made or the contribution is refused or a duplicate. Its destructor must not call the shard.
struct Contribution {
  int worker = 0;
  int64_t step = 0;
  int bucket = 0;
  std::vector<std::span<const std::byte>> pieces;
  std::shared_ptr<const void> keeper;  // shared: the transport may hold the message too
};

enum class ContributionFate {
  kPending,    // taken; others are missing
  kSealed,     // taken, and it was the last: this call, and no other, made the update
  kDuplicate,  // was here before: nothing changed
};

struct ContributeResult {
  ContributionFate fate = ContributionFate::kPending;
  // The parameters after the contribution's step; null while that step waits for others. Shared: replies to several
  // workers send from the same memory.
  std::shared_ptr<const SealedSlice> sealed;
  // Of kSealed: the part of the time that the sum took, the rest was the optimizer's; 0 without Options::sum_share.
  double sum_share = 0;
};

// Sum and optimizer take turns, some thousand times a bucket: what part is the sum's is found by timing some turns.
enum class SumShare { kNotMeasured, kMeasured };

// One piece of a bucket's update when the sum is already made.
struct ApplyArgs {
  int64_t step = 0;
  int bucket = 0;
  ElementRange range;           // of the parameter vector; inside one range that the shard owns of `bucket`
  std::span<const float> sum;   // range.size() elements: the gradient, summed over all workers, but for `last`
  std::span<const float> last;  // empty, or range.size() elements to be added to `sum` in the same pass over memory
  std::span<float> parameters;  // range.size() elements, updated in place
};

struct MissingRanks {
  std::vector<int> ranks;                             // ascending; empty when nobody is missing
  absl::Time first_arrival = absl::InfiniteFuture();  // of the contributions that are here
};

class ParameterShard {
 public:
  struct Options {
    // slices[b]: what this owner owns of bucket b, ascending. Star: one range. Ring: one per block. May be empty.
    std::vector<std::vector<ElementRange>> slices;
    int64_t element_count = 0;  // of the whole parameter vector
    int world_size = 1;
    int64_t first_step = 0;
    OptimizerConfig optimizer;
    LearningRateSchedule schedule;
    std::function<absl::Time()> now = absl::Now;  // stamps first_arrival
    SumShare sum_share = SumShare::kNotMeasured;
  };
  // Optimizer state starts at zero. InvalidArgument if an option is out of bounds or a range overlaps another or the
  // vector's end.
  static absl::StatusOr<std::unique_ptr<ParameterShard>> Create(Options options);
  ~ParameterShard();

  int bucket_count() const;
  int64_t slice_element_count(int bucket) const;
  // The lowest step in progress of all buckets of which the shard owns something; first_step if it owns nothing.
  int64_t step() const;

  // ---- Star

  // Seals the parameters that the first step starts from, as the update of step first_step - 1. May be repeated (a
  // message that is sent again) until the bucket's first contribution; then FailedPrecondition. InvalidArgument on a
  // wrong bucket or byte count.
  absl::Status SetParameters(int bucket, BytePieces parameters);

  // Takes a contribution. Idempotent by (worker, step, bucket): who is here counts, not how many messages came. A step
  // needs one contribution of every worker; the call that brings the last one sums, updates and seals before it
  // returns.
  //   step in progress     kPending, kSealed or kDuplicate
  //   the step before      kDuplicate with its sealed slice, if that is a step of this run
  //   any other step       FailedPrecondition naming worker, step, bucket and the step that is expected
  // FailedPrecondition also without SetParameters; InvalidArgument on a wrong worker, bucket or byte count, naming both
  // values. An error changes nothing.
  //
  // A caller that answers workers later must note whom to answer *before* this call: another thread's kSealed may come
  // before this one's kPending has returned.
  absl::StatusOr<ContributeResult> Contribute(Contribution contribution);

  // The newest sealed slice of `bucket`; null before SetParameters.
  std::shared_ptr<const SealedSlice> Parameters(int bucket) const;

  // From now on the newest parameters of `bucket` lie in `memory`, where they are already: every update overwrites the
  // one before, whoever holds what Contribute and Parameters return. So it is for readers that have done with a step's
  // parameters when they contribute to the next step; it saves them a copy, and the shard its buffers. The update is
  // written past the caches (common/arithmetic/stream_copy.h), as the readers are on other cores.
  // REQUIRES: SetParameters was called; `memory` has the slice's length, holds the values of Parameters(bucket), and is
  // written to by nobody else; `keeper` keeps it alive.
  void UpdateInPlace(int bucket, std::span<float> memory, std::shared_ptr<const void> keeper);

  // Who has not contributed to `step` of `bucket` yet, and since when the others wait: what the message of an expired
  // deadline says. Nobody is missing from a step that is sealed; everybody is from a future one.
  MissingRanks Missing(int64_t step, int bucket) const;

  // ---- Ring and local

  // Updates one piece in place. The step of the bucket is over when the pieces add up to all that the shard owns of it.
  // REQUIRES: args.step is the bucket's step in progress; every element is given once a step.
  void Apply(const ApplyArgs& args);

  // ---- Optimizer state: StateVectorCount(optimizer) vectors. Not while a step of the bucket is in flight.

  // The slice's part of state vector `vector`, ascending. REQUIRES: out.size() == slice_element_count(bucket).
  void CopyState(int bucket, int vector, std::span<float> out) const;
  // The same of its elements from `offset` on. REQUIRES: offset + out.size() <= slice_element_count(bucket).
  void CopyStatePart(int bucket, int vector, int64_t offset, std::span<float> out) const;
  // FailedPrecondition after the bucket's first contribution; InvalidArgument on a wrong bucket, vector or byte count.
  absl::Status SetState(int bucket, int vector, BytePieces state);

  // All that the shard owns, from or to vectors of element_count elements each; other elements are left alone.
  // REQUIRES: one span per state vector; for CopyStateIn `whole` may be empty, which means zeros.
  void CopyStateOut(std::span<const std::span<float>> whole) const;
  void CopyStateIn(std::span<const std::span<const float>> whole);

 private:
  struct Bucket;

  explicit ParameterShard(Options options);
  absl::Status CheckBucket(int bucket) const;
  absl::Status CheckContribution(const Contribution& contribution) const;
  absl::Status CheckUntouched(int bucket, const char* what) const;
  std::span<float> StateOf(const Bucket& bucket, int vector) const;
  double SumAndUpdate(Bucket& bucket);  // returns ContributeResult::sum_share
  // Elements [offset, offset + gradient.size()) of the bucket's slice, at its step in progress.
  void Update(const Bucket& bucket, int64_t offset, std::span<const float> gradient, const float* in, float* out) const;

  const Options options_;
  const int state_count_;
  // state_[i]: state vector i of everything owned, bucket after bucket. A bucket's part is guarded by its lock, as is
  // all that Bucket holds; so a const method that has the lock may write it.
  mutable std::vector<AlignedFloats> state_;
  std::vector<std::unique_ptr<Bucket>> buckets_;
};

}  // namespace starring

#endif  // STARRING_COMMON_PARAMETER_SHARD_H_
