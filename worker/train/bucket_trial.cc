#include "worker/train/bucket_trial.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/status.h"

namespace starring {

absl::StatusOr<BucketTrial> BucketTrial::Create(int64_t element_count, int world_size) {
  std::vector<BucketMap> sizes;
  for (const int64_t bytes : kSizes) {
    absl::StatusOr<BucketMap> map =
        BucketMap::Create({.element_count = element_count, .bucket_bytes = bytes, .world_size = world_size});
    // A huge model has too many small buckets, and is tried with larger ones.
    if (!map.ok() && bytes != kSizes.back()) continue;
    RETURN_IF_ERROR(map.status());
    // The rounded sizes tell whether two maps differ.
    if (sizes.empty() || sizes.back().bucket_bytes() != map->bucket_bytes()) sizes.push_back(*std::move(map));
  }
  return BucketTrial(std::move(sizes));
}

bool BucketTrial::AddStep(absl::Duration time) {
  CHECK_GT(size_count(), 1);
  CHECK(!is_measured());
  steps_.push_back(time);
  if (std::ssize(steps_) < kStepsPerSize) return false;
  std::vector<absl::Duration> measured(steps_.begin() + kWarmupSteps, steps_.end());
  std::ranges::nth_element(measured, measured.begin() + measured.size() / 2);
  // The median ignores a step that the system has disturbed.
  step_ms_.push_back(absl::ToDoubleMilliseconds(measured[measured.size() / 2]));
  if (is_measured()) return true;
  ++current_;
  steps_.clear();
  return true;
}

std::vector<TriedBuckets> BucketTrial::Choose(std::span<const double> sums) {
  CHECK(is_measured());
  CHECK_EQ(sums.size(), sizes_.size());
  std::vector<TriedBuckets> tried;
  for (size_t i = 0; i < sizes_.size(); ++i) {
    tried.push_back({.bucket_bytes = sizes_[i].bucket_bytes(), .step_ms = sums[i] / sizes_[i].world_size()});
    if (sums[i] <= sums[current_]) current_ = static_cast<int>(i);
  }
  return tried;
}

}  // namespace starring
