// Gathers the contributions of all workers to a shard's buckets. When the last contribution of a step arrives, adds
// them in reduction order and applies the optimizer in the same pass over memory. The result is a *sealed* slice.
//
// A step needs one contribution of every worker, or with micro-batches one for every node of a worker's share
// (common/job/leaf_shares.h). Contributions count, not messages: a worker that lost a connection sends again.
//
// A slice of more than kPartElements may be summed in parts (SumInParts), between which the caller does other work.
// Then the last contribution makes its bucket *complete*, and the buckets that are complete are summed one after the
// other.
//
// Memory: a contribution stays in the message that brought it until the sum is made; nothing is copied. The updated
// parameters go to a buffer of this object, or in place to memory that all workers read (UpdateInPlace).
//
// Thread safety: one thread at a time. Any thread may drop what Parameters and Contribute return: gRPC's threads do.
#ifndef STARRING_SERVER_SHARD_CONTRIBUTION_SUM_H_
#define STARRING_SERVER_SHARD_CONTRIBUTION_SUM_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/arithmetic/reduction_order.h"
#include "common/arithmetic/sum_in_order.h"
#include "common/base/memory.h"
#include "common/job/leaf_shares.h"
#include "common/job/owned_slices.h"
#include "common/reduce/release.h"
#include "common/wire/exchange_message.h"
#include "server/shard/collective_wait.h"

namespace starring {

// The parameters of one slice after some step. Immutable while anyone but its ContributionSum refers to it, so that an
// answer cannot change while a slow worker still reads it. Memory given to UpdateInPlace is the one exception.
class SealedSlice {
 public:
  explicit SealedSlice(int64_t element_count) : own_(element_count), values_(own_.span()) {}
  // In `memory`, which `keeper` keeps alive.
  SealedSlice(std::span<float> memory, std::shared_ptr<const void> keeper)
      : keeper_(std::move(keeper)), values_(memory) {}
  SealedSlice(const SealedSlice&) = delete;
  SealedSlice& operator=(const SealedSlice&) = delete;

  std::span<const float> parameters() const { return values_; }
  // The step whose update it contains; first_step - 1 (so -1 in a fresh run) for the initial parameters.
  int64_t step() const { return step_; }

 private:
  friend class ContributionSum;

  AlignedFloats own_;
  std::shared_ptr<const void> keeper_;  // shared: other slices are in the same memory
  std::span<float> values_;
  int64_t step_ = -1;
};

// One worker's gradient of one slice, as little-endian float32. `keeper` keeps the bytes of `pieces` alive; it is
// dropped when the sum is made, or at once if the contribution is refused or is a duplicate.
struct Contribution {
  LaneId from;
  int64_t step = 0;
  int bucket = 0;
  int node = 0;                        // which of the worker's share, in the order of the share
  std::vector<BytePiece> pieces;       // of any length and alignment
  std::shared_ptr<const void> keeper;  // shared: the transport may hold the message too
};

enum class ContributionFate {
  kPending,    // taken; others are missing
  kComplete,   // taken, and it was the last: SumPart makes the update
  kSealed,     // taken, and it was the last: the update is made
  kDuplicate,  // was here before: only the lane to answer may have changed
};

struct ContributeResult {
  ContributionFate fate = ContributionFate::kPending;
  // The contribution is not the last of the worker's share: the sender is told now that it has arrived, and gets no
  // parameters for it.
  bool accepted = false;
  // The parameters after the contribution's step, and the lanes that now get them: of all workers for kSealed, of the
  // sender if it asks again for a step that is sealed. Else null and empty. Shared: all answers refer to one memory.
  std::shared_ptr<const SealedSlice> sealed;
  std::vector<LaneId> answer_to;
  // When the first contribution of the step arrived. Not for kDuplicate.
  CollectiveWait::Time first_arrival;
};

// An update that is made. `sealed` and `answer_to` are as in ContributeResult.
struct SealedUpdate {
  int bucket = 0;
  std::shared_ptr<const SealedSlice> sealed;
  std::vector<LaneId> answer_to;
};

class ContributionSum {
 public:
  using Time = CollectiveWait::Time;

  // 128 KiB: while a part is summed, nothing else happens on the caller's thread.
  static constexpr int64_t kPartElements = int64_t{32} << 10;

  // With `leaf_owners` (common/job/leaf_shares.h) the order is a tree; without, every worker is a leaf. InvalidArgument
  // as OwnedSlices::Create, or if a number is out of bounds. REQUIRES: an owner is below world_size, each has a leaf.
  static absl::StatusOr<ContributionSum> Create(OwnedSlices::Options owned, ReductionOrder reduction,
                                                std::vector<int> leaf_owners = {});

  // All methods that take a bucket: REQUIRES: 0 <= bucket < owned().bucket_count().

  // The slices that the shard owns, with the optimizer's state.
  const OwnedSlices& owned() const { return owned_; }

  // Set the start of the run: state if the run is resumed, then the parameters, which are sealed as the update of step
  // first_step - 1. InvalidArgument on a wrong number of bytes. REQUIRES: Parameters(bucket) is null.
  absl::Status SetState(int bucket, int vector, std::span<const BytePiece> state);
  absl::Status SetParameters(int bucket, std::span<const BytePiece> parameters);

  // From now on slices of more than kPartElements are summed by SumPart. REQUIRES: no worker asks again for the step
  // before: while its bucket is summed, the update may overwrite it.
  void SumInParts() { sums_in_parts_ = true; }

  // Takes a contribution. The one that completes a step is summed, applied and sealed before the call returns, or else
  // by SumPart.
  //   step in progress     kPending, kComplete, kSealed or kDuplicate
  //   the step before      kDuplicate with its sealed slice, if that is a step of this run
  //   any other step       FailedPrecondition naming worker, step, bucket and the step that is expected
  // FailedPrecondition also without SetParameters; InvalidArgument, naming both values, on a wrong number of bytes or a
  // node that is not in the worker's share. An error changes nothing. REQUIRES: 0 <= contribution.from.rank < world
  // size.
  absl::StatusOr<ContributeResult> Contribute(Contribution contribution, Time now);

  // A bucket is complete and not sealed.
  bool is_summing() const { return !complete_.empty(); }
  // Sums the next part of the bucket that has been complete longest. Returns the update if that was the last part.
  // REQUIRES: is_summing().
  std::optional<SealedUpdate> SumPart();

  // The newest sealed slice of `bucket`; null before SetParameters.
  std::shared_ptr<const SealedSlice> Parameters(int bucket) const { return BucketAt(bucket).sealed; }

  // From now on every update of `bucket` overwrites the one before in `memory`, which holds the newest parameters
  // already. For readers that have finished with a step's parameters when they contribute to the next step: they need
  // no copy, and this object no buffers. The update is written past the caches (common/arithmetic/array_passes.h), as
  // the readers run on other cores.
  // REQUIRES: Parameters(bucket) is not null; `memory` has the slice's length and its values, and no one else writes to
  // it; `keeper` keeps it alive.
  void UpdateInPlace(int bucket, std::span<float> memory, std::shared_ptr<const void> keeper);

  // The workers that have contributed to the bucket's step in progress, and since when they wait.
  const CollectiveWait& wait(int bucket) const { return BucketAt(bucket).wait; }
  // The buckets to whose step in progress another worker has contributed and `rank` has not. Kept as contributions
  // arrive, so that the call costs the same for any number of buckets.
  int BucketsMissing(int rank) const { return started_count_ - contributed_count_[rank]; }
  // How many leaves, over all steps since Create, have come to the bucket and are in its sums.
  int64_t counted_leaves(int bucket) const { return BucketAt(bucket).counted_leaves; }
  // All steps before this one are over, for every bucket.
  int64_t steps_complete() const { return steps_complete_; }

 private:
  struct Bucket {
    // For the step in progress, the one after sealed->step(): the workers all of whose contributions are here.
    CollectiveWait wait;
    std::vector<std::optional<Contribution>> contributions;  // of that step, by contributor
    int64_t here = 0;                                        // of them
    std::shared_ptr<const SealedSlice> sealed;
    std::vector<std::shared_ptr<SealedSlice>> buffers;  // the sealed one among them; at most kSliceBuffersMax
    std::shared_ptr<SealedSlice> in_place;              // if not null, it is sealed, and there are no buffers
    int64_t counted_leaves = 0;
  };

  ContributionSum(OwnedSlices owned, ReductionOrder reduction, std::vector<Contributor> contributors);
  const Bucket& BucketAt(int bucket) const;
  absl::Status CheckBytes(int bucket, std::span<const BytePiece> pieces, const char* what) const;
  std::shared_ptr<SealedSlice> FreeBuffer(int bucket);
  void BeginSum(int bucket);
  void SumElements(int64_t count);
  void UpdatePass(const Bucket& bucket, int first_rank, int64_t count);
  SealedUpdate Seal();
  void CountStep(int bucket);

  OwnedSlices owned_;
  ReductionOrder reduction_;
  std::vector<Contributor> contributors_;
  std::vector<std::vector<int>> contributors_of_;  // by rank, then node: an index of contributors_
  std::vector<Bucket> buckets_;
  const Release release_;
  PieceSum sum_;
  bool sums_in_parts_ = false;
  std::deque<int> complete_;  // buckets, the one that is being summed first
  // How far that one is: null, not begun.
  std::shared_ptr<SealedSlice> summing_;
  size_t range_ = 0;                    // of owned_.ranges
  int64_t in_range_ = 0;                // elements that are done
  int64_t offset_ = 0;                  // the same, in the slice
  int started_count_ = 0;               // buckets whose step in progress has a contribution
  std::vector<int> contributed_count_;  // by rank: those of them that have the rank's
  int64_t steps_complete_;
  int buckets_behind_ = 0;  // not empty, and their step in progress is the one after steps_complete_
};

}  // namespace starring

#endif  // STARRING_SERVER_SHARD_CONTRIBUTION_SUM_H_
