// The owner of a job with --clip_norm. The factor of a step depends on the whole gradient, so no part of it can be
// updated as soon as its sum is there. Instead, each rank gets all sums, where it would get new parameters otherwise,
// and then updates all parameters itself: the ranks compute the same factor, and the same parameters.
//
// Cost: the bytes on the way are those of new parameters. The optimizer's work and state are those of the whole vector
// on every rank, and one more vector has the sums.
//
// Thread safety: one thread at a time, any thread.
#ifndef STARRING_WORKER_EXCHANGE_CLIPPING_OWNER_H_
#define STARRING_WORKER_EXCHANGE_CLIPPING_OWNER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/statusor.h"
#include "common/job/job_spec.h"
#include "common/job/owned_slices.h"
#include "worker/exchange/slice_owner.h"

namespace starring {

class ClippingOwner final : public HostSliceOwner {
 public:
  // Null if the job does not clip. `sums`: memory as long as the parameter vector, where all sums will be; empty: the
  // owner makes some. The optimizer's state starts at zero; it is that of the whole vector.
  static absl::StatusOr<std::unique_ptr<ClippingOwner>> Create(const JobSpec& job, std::span<float> sums = {});

  // Where the exchange is to bring the results of all owners, as it otherwise brings parameters.
  std::span<float> sums() const { return sums_; }
  // args.parameters = the sum, which are elements of sums() here. The parameters' update comes with Update.
  void Apply(const ApplyArgs& args) override;
  // Updates `parameters` from sums(), once a round: does nothing if that round was updated. REQUIRES: sums() has the
  // sum of all elements, and rounds have no gaps.
  void Update(int64_t round, std::span<float> parameters);
  bool HasUpdated(int64_t round) const { return round < next_round_; }

 private:
  ClippingOwner(OwnedSlices whole, const JobSpec& job)
      : HostSliceOwner(std::move(whole)), clip_norm_(job.optimizer.clip_norm), next_round_(job.first_step) {}

  const double clip_norm_;
  int64_t next_round_;
  std::span<float> sums_;
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_CLIPPING_OWNER_H_
