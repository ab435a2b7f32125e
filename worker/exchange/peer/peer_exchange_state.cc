// How the optimizer's state, which lies with the owners, comes together, and how it moves when the buckets change.
#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "common/base/check.h"
#include "common/base/status.h"
#include "common/job/owned_slices.h"
#include "common/transport/collectives.h"
#include "worker/exchange/peer/peer_exchange.h"
#include "worker/exchange/peer/server_ranks.h"

namespace starring {

absl::Status PeerExchange::UseBuckets(const BucketMap& buckets, int64_t round) {
  TrainerDrives drive(*this);
  CHECK(machine_ != nullptr) << "UseBuckets before Start";
  if (!own_parameters_.empty()) {
    return absl::UnimplementedError("messages of GPU memory keep to the buckets of the start");
  }
  if (way_.algorithm == Algorithm::kDedicated) {
    return absl::UnimplementedError("servers keep to the buckets of the start: give --bucket_bytes a number");
  }
  CHECK_EQ(buckets.element_count(), job_.buckets.element_count());
  // Every rank drains before it posts anything for the new buckets. So old and new messages of one tag match in the
  // order in which they were posted, as those of two steps do.
  RETURN_IF_ERROR(Drain());
  // The order of the state that a rank keeps depends on the buckets, and in shared memory its elements do, too.
  moving_state_.assign(StateVectorCount(job_.optimizer), std::vector<float>(parameters_.size()));
  owner_->CopyStateOut(std::vector<std::span<float>>(moving_state_.begin(), moving_state_.end()));
  if (way_.shares_memory) RETURN_IF_ERROR(ShareMovingState());
  earlier_ = CountersOfAllMachines();
  job_.buckets = buckets;
  job_.first_step = round;
  RETURN_IF_ERROR(CreateHostOwner());
  owner_->CopyStateIn(std::vector<std::span<const float>>(moving_state_.begin(), moving_state_.end()));
  moving_state_ = {};
  machine_ = CreateMachine();
  return absl::OkStatus();
}

// Every rank gets the state of all others, by way of rank 0, and the board is as at the start.
absl::Status PeerExchange::ShareMovingState() {
  const CollectiveOptions options = {.what = "the change of buckets", .deadline = job_.exchange_deadline};
  // Between the two barriers no rank uses a count.
  RETURN_IF_ERROR(Barrier(pump_, options));
  if (pump_.rank() == 0) memory_->board()->Clear();
  // With --clip_norm every rank has all of it already.
  for (int i = 0; clipping_ == nullptr && i < std::ssize(moving_state_); ++i) {
    RETURN_IF_ERROR(GatherStateVector(i, pump_.rank() == 0 ? moving_state_[i] : std::span<float>()));
    RETURN_IF_ERROR(BroadcastFromRoot(pump_, std::as_writable_bytes(std::span(moving_state_[i])), options));
  }
  return Barrier(pump_, options);
}

absl::Status PeerExchange::GatherOptimizerState(std::span<const std::span<float>> state) {
  TrainerDrives drive(*this);
  RETURN_IF_ERROR(Drain());
  if (way_.algorithm == Algorithm::kDedicated) return FetchStateFromServers(pump_, job_, state);
  const int vector_count = StateVectorCount(job_.optimizer);
  if (pump_.rank() == 0) {
    CHECK_EQ(state.size(), vector_count);
    owner_->CopyStateOut(state);
  }
  // Every rank updates everything, so rank 0 has the whole state already.
  const bool has_all = way_.algorithm == Algorithm::kAllreduce || clipping_ != nullptr || pump_.world_size() == 1;
  if (has_all) return absl::OkStatus();
  for (int i = 0; i < vector_count; ++i) {
    RETURN_IF_ERROR(GatherStateVector(i, pump_.rank() == 0 ? state[i] : std::span<float>()));
  }
  return absl::OkStatus();
}

// One rank after the other, and one bucket's slice after the other, so that rank 0 holds one slice besides the vectors
// that it fills. It is slow, but checkpoints are rare.
absl::Status PeerExchange::GatherStateVector(int vector, std::span<float> whole) {
  const CollectiveOptions options = {.what = "gathering the optimizer's state", .deadline = job_.exchange_deadline};
  for (int rank = 1; rank < pump_.world_size(); ++rank) {
    if (pump_.rank() != 0 && pump_.rank() != rank) continue;
    const std::vector<std::vector<ElementRange>> slices = SlicesOf(way_, job_.buckets, rank);
    for (int b = 0; b < job_.buckets.bucket_count(); ++b) {
      const std::vector<ElementRange>& ranges = slices[b];
      int64_t count = 0;
      for (const ElementRange& range : ranges) count += range.size();
      // The Transfer before has ended, so its buffer may be used again.
      scratch_.resize(count);
      if (pump_.rank() == rank) owner_->CopyState(b, vector, scratch_);
      RETURN_IF_ERROR(Transfer(pump_, {.from = rank, .to = 0}, std::as_writable_bytes(std::span(scratch_)), options));
      if (pump_.rank() != 0) continue;
      const float* from = scratch_.data();
      for (const ElementRange& range : ranges) {
        std::copy_n(from, range.size(), whole.begin() + range.begin);
        from += range.size();
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace starring
