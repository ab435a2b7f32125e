// --bucket_bytes=auto: tries three sizes of buckets in the first steps of a run, and chooses the fastest.
//
// Each size is used for kStepsPerSize steps. The first kWarmupSteps of them are not measured, because the first step of
// a size has no exchange of the step before to wait for, and the very first steps are slow anyway. A size's time is the
// median of the others. Sizes that cut the vector alike are tried once.
//
// A size changes no bit (common/job/bucket_map.h), so a choice by the clock leaves results reproducible. The ranks must
// choose alike: they add their times and choose by the sums.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_TRAIN_BUCKET_TRIAL_H_
#define STARRING_WORKER_TRAIN_BUCKET_TRIAL_H_

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/job/bucket_map.h"

namespace starring {

// A size that was tried, for the run record.
struct TriedBuckets {
  int64_t bucket_bytes = 0;  // as rounded
  double step_ms = 0;        // median of this size's measured steps, mean over the ranks
};

class BucketTrial {
 public:
  static constexpr std::array<int64_t, 3> kSizes = {256 << 10, 1 << 20, 4 << 20};
  static constexpr int64_t kStepsPerSize = 10;
  static constexpr int64_t kWarmupSteps = 3;

  // Fails as BucketMap::Create.
  static absl::StatusOr<BucketTrial> Create(int64_t element_count, int world_size);

  // The buckets that the next step must use.
  const BucketMap& buckets() const { return sizes_[current_]; }
  // Sizes that cut the vector differently. With one size there is nothing to try, and nothing to choose.
  int size_count() const { return static_cast<int>(sizes_.size()); }
  // Steps that the trial takes, 0 with one size.
  int64_t step_count() const { return size_count() > 1 ? size_count() * kStepsPerSize : 0; }
  // The step that comes next is its size's last: it must leave no bucket in flight.
  bool IsLastStepOfSize() const { return std::ssize(steps_) == kStepsPerSize - 1; }
  // All sizes were measured, so Choose must follow; nothing else may.
  bool is_measured() const { return current_ == size_count() - 1 && std::ssize(steps_) == kStepsPerSize; }

  // The next step has taken this long. True if buckets() has changed, or is_measured().
  // REQUIRES: size_count() > 1 and not is_measured().
  bool AddStep(absl::Duration time);

  // This rank's median of each size, in milliseconds. REQUIRES: is_measured().
  const std::vector<double>& step_ms() const { return step_ms_; }

  // `sums`: step_ms() added over all ranks, the same on each of them. From now on buckets() has the fastest size; among
  // equals, the largest, which has the fewest messages. Returns the sizes that were tried. REQUIRES: is_measured().
  std::vector<TriedBuckets> Choose(std::span<const double> sums);

 private:
  explicit BucketTrial(std::vector<BucketMap> sizes) : sizes_(std::move(sizes)) {}

  std::vector<BucketMap> sizes_;  // ascending
  int current_ = 0;
  std::vector<absl::Duration> steps_;  // of the current size
  std::vector<double> step_ms_;        // of the sizes that were measured
};

}  // namespace starring

#endif  // STARRING_WORKER_TRAIN_BUCKET_TRIAL_H_
