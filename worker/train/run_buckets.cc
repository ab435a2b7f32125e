#include "worker/train/run_buckets.h"

#include <utility>

#include "common/base/status.h"
#include "worker/step/in_flight_buckets.h"

namespace starring {

absl::Status RunBuckets::Plan(int64_t step_count, Checkpointer* checkpointer, JobSpec* job) {
  const WorkerOptions& worker = *options_.worker;
  checkpointer_ = checkpointer;
  if (worker.TriesBucketSizes()) {
    // Only ranks that all try sizes make the same calls of the exchange.
    job->agreed_flags.emplace_back("bucket_bytes", "auto");
    if (const int64_t chosen = checkpointer->chosen_bucket_bytes(); chosen > 0) {
      ASSIGN_OR_RETURN(
          current_,
          BucketMap::Create(
              {.element_count = current_.element_count(), .bucket_bytes = chosen, .world_size = worker.world_size}),
          "the size of buckets in the checkpoint");
    } else {
      ASSIGN_OR_RETURN(BucketTrial trial, BucketTrial::Create(current_.element_count(), worker.world_size));
      // A choice that comes with the last step is of no use.
      if (trial.step_count() > 0 && trial.step_count() < step_count) {
        trial_ = std::move(trial);
        current_ = trial_->buckets();
      }
    }
    options_.step->UseBuckets(current_);
  }
  job->buckets = current_;
  return absl::OkStatus();
}

absl::Status RunBuckets::AfterStep(absl::Duration time, int64_t next_step) {
  if (!trial_.has_value() || !trial_->AddStep(time)) return absl::OkStatus();
  const bool is_measured = trial_->is_measured();
  if (is_measured) {
    // All ranks get the same sums, and choose alike.
    std::vector<double> times = trial_->step_ms();
    RETURN_IF_ERROR(options_.exchange->Sum(SumPurpose::kBucketTrial, times));
    tried_ = trial_->Choose(times);
    // A checkpoint of this step or a later one has the choice.
    checkpointer_->set_chosen_bucket_bytes(trial_->buckets().bucket_bytes());
  }
  current_ = trial_->buckets();
  if (is_measured) trial_.reset();
  RETURN_IF_ERROR(options_.exchange->UseBuckets(current_, RoundOf(next_step)));
  options_.step->UseBuckets(current_);
  return absl::OkStatus();
}

}  // namespace starring
